"""Read and write ViT and DeiT in the format of `transformers`; read them in the format of `timm`.

Configurations that these formats cannot represent are saved in the format of Manyheads. Based on transformers 5.23
(modeling_vit.py, modeling_deit.py, and conversion_mapping.py, which preserves older names in files) and timm 1.0.31
(vision_transformer.py, deit.py).

A distilled DeiT has two classifiers. DeiTForImageClassificationWithTeacher of transformers always predicts with the
mean of their logits, while a Manyheads model may sum their softmaxes. A key `fused` in config.json states the method,
and other tools preserve this key. They compute equal logits, but may predict another class than Manyheads.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping

from torch import Tensor

from manyheads.errors import UserError
from manyheads.files import JsonMapping, JsonObject
from manyheads.interop import timm
from manyheads.interop.family import Family
from manyheads.interop.keys import ABSENT, ANY_MODEL, FEED_FORWARD, SIZES, activation, architecture
from manyheads.interop.labels import TargetRow, label_names, read_labels, read_target
from manyheads.interop.table import Setting, SettingRow, Settings, Weight, concatenated, weights_and_biases
from manyheads.models.vit import ViT, ViTConfig

BLOCK = "encoder.blocks.{}"
LAYERS = {
    "patches": "embeddings.patch_embeddings.projection",
    **{f"{BLOCK}.attention.{name}": f"encoder.layer.{{}}.attention.attention.{name}"
       for name in ("query", "key", "value")},
    f"{BLOCK}.attention.output": "encoder.layer.{}.attention.output.dense",
    f"{BLOCK}.attention_norm": "encoder.layer.{}.layernorm_before",
    f"{BLOCK}.feed_forward.expand": "encoder.layer.{}.intermediate.dense",
    f"{BLOCK}.feed_forward.contract": "encoder.layer.{}.output.dense",
    f"{BLOCK}.feed_forward_norm": "encoder.layer.{}.layernorm_after",
    "encoder.norm": "layernorm",
    "representation": "pooler.dense",
}  # fmt: skip
# Since version 5 of transformers, layers of a loaded model have other names than in files. peft uses the names of the
# loaded model.
_MODULES = (
    ("encoder.layer.", "layers."), ("attention.attention.query", "attention.q_proj"),
    ("attention.attention.key", "attention.k_proj"), ("attention.attention.value", "attention.v_proj"),
    ("attention.output.dense", "attention.o_proj"), ("intermediate.dense", "mlp.fc1"), ("output.dense", "mlp.fc2"),
)  # fmt: skip
# In the file, these tensors have additional leading dimensions of size 1.
TOKEN: JsonObject = {"to_theirs": lambda t: t[None, None], "to_ours": lambda t: t[0, 0]}
TABLE: JsonObject = {"to_theirs": lambda t: t[None], "to_ours": lambda t: t[0]}


def _weights(name: str) -> Callable[[ViTConfig, Iterable[str]], list[Weight]]:
    """Return a function that returns the conversion table of the tensors of a model family, such as ViT.

    name  prefix of the encoder's tensor names in files of a model with a head
    """

    def rows(config: ViTConfig, names: Iterable[str]) -> list[Weight]:
        prefix = f"{name}." if config.labels else ""
        tokens = [
            Weight("class_token", f"{prefix}embeddings.cls_token", **TOKEN),
            Weight("distillation_token", f"{prefix}embeddings.distillation_token", **TOKEN),
            Weight("positions.table", f"{prefix}embeddings.position_embeddings", **TABLE),
        ]
        heads = ("cls_classifier", "distillation_classifier") if _with_teacher(config) else ("classifier", "")
        pairs = {ours: prefix + theirs for ours, theirs in LAYERS.items()}
        pairs |= zip(("head", "distillation_head"), heads, strict=True)
        return tokens + weights_and_biases(pairs)

    return rows


def _with_teacher(config: ViTConfig) -> bool:
    return bool(config.labels) and config.distilled and config.fused != "none"


def _architecture(config: ViTConfig) -> str:
    what = "ForImageClassification" if config.labels else "Model"
    return ("DeiT" if config.distilled else "ViT") + what + "WithTeacher" * _with_teacher(config)


def _infer(settings: JsonMapping, tensors: Mapping[str, Tensor]) -> JsonObject:
    """Infer labels, pooler and teacher head from `architectures` in config.json.

    Only a model without labels may have a pooler.
    """
    stem = "DeiT" if settings.get("model_type") == "deit" else "ViT"
    bare, labeled = f"{stem}Model", f"{stem}ForImageClassification"
    with_teacher = [f"{labeled}WithTeacher"] if stem == "DeiT" else []
    named = architecture(settings, [bare, labeled, *with_teacher])
    labels = () if named == bare else read_labels(settings)
    fields: JsonObject = {"labels": labels, "target": read_target(settings, labels) if labels else "classes"}
    if named == bare and (pooler := tensors.get("pooler.dense.weight")) is not None:
        fields["representation"] = len(pooler)
    if stem == "DeiT":
        fields["fused"] = (settings.get("fused") or "logits") if named in with_teacher else "none"
    return fields


def _also_written(config: ViTConfig) -> JsonObject:
    if config.labels and config.representation is not None:
        raise UserError(f"representation is {config.representation}; with labels, only None can be represented")
    if not config.labels:
        return {} if config.representation is None else {"pooler_output_size": config.representation}
    return label_names(config.labels) | ({"fused": config.fused} if _with_teacher(config) else {})


IMAGES: tuple[SettingRow, ...] = (  # settings that all vision models share
    *SIZES,
    Setting("image_size", "image_size", default=224),
    Setting("channels", "num_channels", default=3),
)
COMMON: tuple[SettingRow, ...] = (  # settings that ViT, DeiT and DINOv2 share
    *IMAGES,
    activation("hidden_act"),
    Setting("qkv_bias", "qkv_bias", default=True),
    Setting("attention_dropout", "attention_probs_dropout_prob", default=0.0),
    TargetRow(),
)
# Settings with which ViT and DeiT are saved.
PLAIN: JsonObject = {"pool": "class", "norm_after_pool": False, "embedding_norm": False, "projection": None,
                      "distilled": False, "registers": 0, "layer_scale": None}  # fmt: skip
_ROWS: tuple[SettingRow, ...] = (
    *COMMON,
    FEED_FORWARD,
    Setting("patch", "patch_size", default=16),
    Setting("norm_eps", "layer_norm_eps", default=1e-12),
    Setting("dropout", "hidden_dropout_prob", default=0.0),
    # In transformers, only other vision models have this key.
    Setting("stochastic_depth", "drop_path_rate", default=0.0),
)
# Keys that do not change the output of the model in transformers, and keys that `_infer` reads. (encoder_stride is used
# only for masked images.)
_IGNORED = {"encoder_stride", "fused", "pooler_output_size"}


def _family(model_type: str, distilled: bool) -> Family[ViTConfig]:
    return Family(
        model_type, ViTConfig, ViT,
        Settings(
            _ROWS,
            ours_only=PLAIN | {"distilled": distilled},
            theirs_only={},
            tolerated={**ABSENT, "pooler_act": "tanh"},
            ignored=ANY_MODEL | _IGNORED,
        ),
        _weights(model_type),
        architecture=_architecture,
        infer=_infer,
        also_written=_also_written,
        modules=_MODULES,
    )  # fmt: skip


VIT, DEIT = _family("vit", distilled=False), _family("deit", distilled=True)


_TIMM_HEADS = {"tiny": 3, "small": 6, "medium": 8, "betwixt": 10, "base": 12, "base_gap": 16, "large": 16, "huge": 16}
_TIMM_LAYERS = {
    "patches": "patch_embed.proj",
    f"{BLOCK}.attention.output": "blocks.{}.attn.proj",
    f"{BLOCK}.attention_norm": "blocks.{}.norm1",
    f"{BLOCK}.feed_forward.expand": "blocks.{}.mlp.fc1",
    f"{BLOCK}.feed_forward.contract": "blocks.{}.mlp.fc2",
    f"{BLOCK}.feed_forward_norm": "blocks.{}.norm2",
    "embedding_norm": "norm_pre",
    "encoder.norm": "norm",
    "pooled_norm": "fc_norm",
    "head": "head",
    "distillation_head": "head_dist",
}
# First, model arguments of timm that follow from the weights or matter only in training; then arguments with a single
# supported value.
_TIMM_ARGUMENTS = """
    img_size patch_size in_chans num_classes embed_dim depth mlp_ratio num_heads qkv_bias weight_init drop_rate
    pos_drop_rate proj_drop_rate attn_drop_rate drop_path_rate
    class_token fc_norm global_pool init_values no_embed_class pre_norm reg_tokens
"""
_TIMM_FIXED = {"dynamic_img_size": False}


def _timm_weights(config: ViTConfig, names: Iterable[str]) -> list[Weight]:
    fused = [
        Weight(tuple(f"{BLOCK}.attention.{part}.{leaf}" for part in ("query", "key", "value")),
               f"blocks.{{}}.attn.qkv.{leaf}", to_theirs=concatenated, to_ours=lambda t: t.chunk(3))
        for leaf in ("weight", "bias")
    ]  # fmt: skip
    # With registers, only patches have positions in timm. The class token then gets a position of zeros.
    unplaced = 1 if config.registers else 0
    return [
        Weight("class_token", "cls_token", **TOKEN),
        Weight("distillation_token", "dist_token", **TOKEN),
        Weight("register_tokens", "reg_token", **TABLE),
        Weight("positions.table", "pos_embed", to_theirs=lambda t: t[None, unplaced:],
               to_ours=lambda t: concatenated(t.new_zeros(unplaced, t.shape[-1]), t[0])),
        Weight(f"{BLOCK}.attention_scale", "blocks.{}.ls1.gamma"),
        Weight(f"{BLOCK}.feed_forward_scale", "blocks.{}.ls2.gamma"),
        *fused,
        *weights_and_biases(_TIMM_LAYERS),
    ]  # fmt: skip


def _timm_infer(settings: JsonMapping, tensors: Mapping[str, Tensor]) -> JsonObject:
    """Infer most settings from the weights, and the rest from the name in `architecture` and from `global_pool`."""
    name = str(settings.get("architecture"))
    variant = r"_gap|_clip|_clip_quickgelu|_dinov2|_reg4_dinov2|"
    size = re.fullmatch(rf"(?:vit|deit)_([a-z]+)(?:_distilled)?_patch\d+({variant})(?:_\d+)?(?:\..*)?", name)
    if size is None or size[1] not in _TIMM_HEADS:
        raise UserError(
            f"'architecture' is {name!r}; expected vit_SIZE_patchP_N, vit_SIZE_patchP_gap_N, vit_SIZE_patchP_clip_N,"
            " vit_SIZE_patchP_clip_quickgelu_N, vit_SIZE_patchP_dinov2, vit_SIZE_patchP_reg4_dinov2, deit_SIZE_patchP_N"
            f" or deit_SIZE_distilled_patchP_N with a size of {', '.join(n for n in _TIMM_HEADS if '_' not in n)}"
        )
    arguments = timm.arguments(settings, _TIMM_ARGUMENTS.split(), _TIMM_FIXED)
    pool = settings.get("global_pool") or arguments.get("global_pool") or "token"
    if pool not in ("token", "avg"):
        raise UserError(f"'global_pool' is {pool!r}; only 'token' and 'avg' can be represented")
    patches, table, expand = (
        tensors.get(key) for key in ("patch_embed.proj.weight", "pos_embed", "blocks.0.mlp.fc1.weight")
    )
    if patches is None or table is None or expand is None or patches.dim() != 4 or table.dim() != 3:
        raise UserError(
            "expected patch_embed.proj.weight, pos_embed and blocks.0.mlp.fc1.weight in the shapes of a ViT"
        )
    distilled, has_class = "dist_token" in tensors, "cls_token" in tensors
    registers, scale = (tensors.get(key) for key in ("reg_token", "blocks.0.ls1.gamma"))
    special = 0 if registers is not None else has_class + distilled
    return {
        "labels": timm.labels(settings, tensors.get("head.weight")),
        "image_size": math.isqrt(max(table.shape[1] - special, 0)) * patches.shape[-1],
        "patch": patches.shape[-1],
        "channels": patches.shape[1],
        "width": len(patches),
        "layers": sum(bool(re.fullmatch(r"blocks\.\d+\.norm1\.weight", key)) for key in tensors),
        "heads": arguments.get("num_heads") or _TIMM_HEADS.get(size[1] + size[2], _TIMM_HEADS[size[1]]),
        "feed_forward": len(expand),
        "distilled": distilled,
        "fused": "logits",  # timm predicts with the mean of the logits of both classifiers
        "qkv_bias": "blocks.0.attn.qkv.bias" in tensors,
        "pool": "class" if pool == "token" else "patches" if has_class else "mean",
        "norm_after_pool": "fc_norm.weight" in tensors,
        "embedding_norm": "norm_pre.weight" in tensors,
        "registers": 0 if registers is None else registers.shape[1],
        "layer_scale": None if scale is None else 1.0,  # The value matters only at initialization.
        "activation": "quick_gelu" if "quickgelu" in size[2] else "gelu",
        "norm_eps": 1e-5 if "clip" in size[2] else 1e-6,
    }


TIMM_VIT = Family(
    "timm-vit", ViTConfig, ViT,
    Settings((), ours_only={}, theirs_only={}, tolerated={}, ignored=timm.IGNORED | {"global_pool"}),
    _timm_weights,
    architecture=_architecture,
    infer=_timm_infer,
    preprocessing=timm.preprocessing,
)  # fmt: skip
