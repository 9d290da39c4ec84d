"""Read and write the image encoder of CLIP (Radford 2021) in the format of `transformers`.

Based on transformers 5.23 (modeling_clip.py). The text encoder is neither read nor written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from torch import Tensor

from manyheads.files import JsonMapping, JsonObject
from manyheads.interop.family import Family
from manyheads.interop.keys import ABSENT, ANY_TEXT_MODEL, FEED_FORWARD, activation, architecture
from manyheads.interop.table import Setting, Settings, Weight, numbered, weights_and_biases
from manyheads.interop.vit import BLOCK, IMAGES, PLAIN
from manyheads.models.vit import ViT, ViTConfig

_LAYERS = {
    "patches": "embeddings.patch_embedding",
    "embedding_norm": "pre_layrnorm",
    **{f"{BLOCK}.attention.{n}": f"encoder.layers.{{}}.self_attn.{n[0]}_proj" for n in ("query", "key", "value")},
    f"{BLOCK}.attention.output": "encoder.layers.{}.self_attn.out_proj",
    f"{BLOCK}.attention_norm": "encoder.layers.{}.layer_norm1",
    f"{BLOCK}.feed_forward.expand": "encoder.layers.{}.mlp.fc1",
    f"{BLOCK}.feed_forward.contract": "encoder.layers.{}.mlp.fc2",
    f"{BLOCK}.feed_forward_norm": "encoder.layers.{}.layer_norm2",
    "encoder.norm": "post_layernorm",
}  # fmt: skip
_PREFIX = "vision_model."


def _weights(config: ViTConfig, names: Iterable[str]) -> list[Weight]:
    """Return the conversion table of CLIP's image encoder. Every name is read with and without the prefix."""
    written, other = (_PREFIX, "") if config.projection else ("", _PREFIX)
    rows = [
        Weight("class_token", "embeddings.class_embedding"),
        Weight("positions.table", "embeddings.position_embedding.weight"),
        *weights_and_biases(_LAYERS),
    ]
    return [
        *(replace(row, theirs=written + row.theirs, also=(other + row.theirs,)) for row in rows),
        Weight("projection.weight", "visual_projection.weight"),
    ]


def _family(model_type: str, architectures: list[str], part: str = "") -> Family[ViTConfig]:
    """Return the format of CLIP's image encoder (Radford 2021), alone or next to the text encoder."""

    def infer(settings: JsonMapping, tensors: Mapping[str, Tensor]) -> JsonObject:
        architecture(settings, architectures)
        projection = tensors.get("visual_projection.weight")
        return {"projection": None if projection is None else len(projection)}

    return Family(
        model_type, ViTConfig, ViT,
        Settings(
            (
                *IMAGES,
                activation("hidden_act", "quick_gelu"),
                FEED_FORWARD,
                Setting("patch", "patch_size", default=32),
                Setting("norm_eps", "layer_norm_eps", default=1e-5),
                Setting("attention_dropout", "attention_dropout", default=0.0),
            ),
            ours_only={key: value for key, value in PLAIN.items() if key != "projection"} | {
                "embedding_norm": True, "labels": (), "qkv_bias": True, "representation": None, "dropout": 0.0,
                "stochastic_depth": 0.0},
            theirs_only={},
            tolerated=ABSENT,
            ignored=ANY_TEXT_MODEL | {"initializer_factor", "projection_dim", "dropout"},
        ),
        _weights,
        architecture=lambda config: architectures[0] + ("WithProjection" if config.projection else ""),
        infer=infer,
        computed=lambda config: {f"{prefix}embeddings.position_ids": numbered(config.tokens)[None]
                                 for prefix in ("", _PREFIX)},
        also_written=lambda config: {"projection_dim": config.projection} if config.projection else {},
        part=part,
        unread=("text_model.", "text_projection.", "logit_scale") if part else (),
    )  # fmt: skip


CLIP_VISION = _family("clip_vision_model", ["CLIPVisionModel", "CLIPVisionModelWithProjection"])
CLIP = _family("clip", ["CLIPModel"], part="vision_config")  # The image encoder is saved as CLIP_VISION.
