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
from manyheads.interop.keys import ABSENT, ANY_MODEL, FEED_FORWARD, SIZES, WIDTH, activation, architecture
from manyheads.interop.labels import TargetRow, label_names, read_labels, read_target
from manyheads.interop.table import Setting, SettingRow, Settings, Weight, concatenated, weights_and_biases
from manyheads.models.vit import ViT, ViTConfig

_BLOCK = "encoder.blocks.{}"
_LAYERS = {
    "patches": "embeddings.patch_embeddings.projection",
    **{f"{_BLOCK}.attention.{name}": f"encoder.layer.{{}}.attention.attention.{name}"
       for name in ("query", "key", "value")},
    f"{_BLOCK}.attention.output": "encoder.layer.{}.attention.output.dense",
    f"{_BLOCK}.attention_norm": "encoder.layer.{}.layernorm_before",
    f"{_BLOCK}.feed_forward.expand": "encoder.layer.{}.intermediate.dense",
    f"{_BLOCK}.feed_forward.contract": "encoder.layer.{}.output.dense",
    f"{_BLOCK}.feed_forward_norm": "encoder.layer.{}.layernorm_after",
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
_TOKEN: JsonObject = {"to_theirs": lambda t: t[None, None], "to_ours": lambda t: t[0, 0]}
_TABLE: JsonObject = {"to_theirs": lambda t: t[None], "to_ours": lambda t: t[0]}


def _weights(name: str) -> Callable[[ViTConfig, Iterable[str]], list[Weight]]:
    """Return a function that returns the conversion table of the tensors of a model family, such as ViT.

    name  prefix of the encoder's tensor names in files of a model with a head
    """

    def rows(config: ViTConfig, names: Iterable[str]) -> list[Weight]:
        prefix = f"{name}." if config.labels else ""
        tokens = [
            Weight("class_token", f"{prefix}embeddings.cls_token", **_TOKEN),
            Weight("distillation_token", f"{prefix}embeddings.distillation_token", **_TOKEN),
            Weight("positions.table", f"{prefix}embeddings.position_embeddings", **_TABLE),
        ]
        heads = ("cls_classifier", "distillation_classifier") if _with_teacher(config) else ("classifier", "")
        pairs = {ours: prefix + theirs for ours, theirs in _LAYERS.items()}
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


_COMMON: tuple[SettingRow, ...] = (  # settings that ViT, DeiT and DINOv2 share
    *SIZES,
    activation("hidden_act"),
    Setting("qkv_bias", "qkv_bias", default=True),
    Setting("image_size", "image_size", default=224),
    Setting("channels", "num_channels", default=3),
    Setting("attention_dropout", "attention_probs_dropout_prob", default=0.0),
    TargetRow(),
)
_ROWS: tuple[SettingRow, ...] = (
    *_COMMON,
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
            ours_only={"pool": "class", "distilled": distilled, "registers": 0, "layer_scale": None},
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


class _Ratio(Setting):
    """Conversion of the feed-forward network's hidden width, which config.json stores as a ratio to the model width."""

    def to_ours(self, theirs: JsonMapping) -> JsonObject:
        ratio, width = super().to_ours(theirs)[self.ours], WIDTH.to_ours(theirs)["width"]
        # An invalid value is returned unchanged, because the Manyheads configuration reports the error.
        whole = type(ratio) is type(width) is int
        return {self.ours: ratio * width if whole else ratio}

    def to_theirs(self, ours: JsonMapping) -> JsonObject:
        ratio, rest = divmod(ours[self.ours], ours["width"])
        if rest:
            raise UserError(f"feed_forward is {ours[self.ours]}; only multiples of the width can be represented")
        return {self.theirs: ratio}


_DINOV2_LAYERS = {
    **{ours: theirs for ours, theirs in _LAYERS.items() if "norm" not in ours and "feed_forward" not in ours},
    f"{_BLOCK}.attention_norm": "encoder.layer.{}.norm1",
    f"{_BLOCK}.feed_forward.expand": "encoder.layer.{}.mlp.fc1",
    f"{_BLOCK}.feed_forward.contract": "encoder.layer.{}.mlp.fc2",
    f"{_BLOCK}.feed_forward_norm": "encoder.layer.{}.norm2",
    "encoder.norm": "layernorm",
}
_DINOV2_IGNORED = """
    apply_layernorm out_features out_indices reshape_hidden_states stage_names use_mask_token _out_features _out_indices
"""


def _dinov2(model_type: str, name: str, patch: int, registers: SettingRow | None) -> Family[ViTConfig]:
    """Return the format of DINOv2 (Oquab 2023) without a head.

    The mask token is used only in pretraining, so it is neither read nor written.
    """

    def weights(config: ViTConfig, names: Iterable[str]) -> list[Weight]:
        return [
            Weight("class_token", "embeddings.cls_token", **_TOKEN),
            Weight("register_tokens", "embeddings.register_tokens", **_TABLE),
            Weight("positions.table", "embeddings.position_embeddings", **_TABLE),
            Weight(f"{_BLOCK}.attention_scale", "encoder.layer.{}.layer_scale1.lambda1"),
            Weight(f"{_BLOCK}.feed_forward_scale", "encoder.layer.{}.layer_scale2.lambda1"),
            *weights_and_biases(_DINOV2_LAYERS),
        ]

    def infer(settings: JsonMapping, tensors: Mapping[str, Tensor]) -> JsonObject:
        architecture(settings, [name])
        return {}

    rows = (
        *_COMMON,
        _Ratio("feed_forward", "mlp_ratio", default=4),
        Setting("patch", "patch_size", default=patch),
        Setting("norm_eps", "layer_norm_eps", default=1e-6),
        Setting("layer_scale", "layerscale_value", default=1.0),
    )
    fixed = {"labels": (), "pool": "class", "distilled": False, "representation": None, "dropout": 0.0,
             "stochastic_depth": 0.0}  # fmt: skip
    return Family(
        model_type, ViTConfig, ViT,
        Settings(
            (*rows, registers) if registers else rows,
            ours_only=fixed if registers else fixed | {"registers": 0},
            theirs_only={"use_swiglu_ffn": False, "hidden_dropout_prob": 0.0, "drop_path_rate": 0.0},
            tolerated=ABSENT,
            ignored=ANY_MODEL | set(_DINOV2_IGNORED.split()),
        ),
        weights,
        architecture=lambda config: name,
        infer=infer,
        computed=lambda config: {"embeddings.mask_token": None},
        also_written=lambda config: {} if registers else {"use_mask_token": False},
    )  # fmt: skip


DINOV2 = _dinov2("dinov2", "Dinov2Model", 14, None)
DINOV2_REGISTERS = _dinov2(
    "dinov2_with_registers", "Dinov2WithRegistersModel", 16,
    Setting("registers", "num_register_tokens", default=4),
)  # fmt: skip

_TIMM_HEADS = {"tiny": 3, "small": 6, "base": 12, "large": 16, "huge": 16}
_TIMM_LAYERS = {
    "patches": "patch_embed.proj",
    f"{_BLOCK}.attention.output": "blocks.{}.attn.proj",
    f"{_BLOCK}.attention_norm": "blocks.{}.norm1",
    f"{_BLOCK}.feed_forward.expand": "blocks.{}.mlp.fc1",
    f"{_BLOCK}.feed_forward.contract": "blocks.{}.mlp.fc2",
    f"{_BLOCK}.feed_forward_norm": "blocks.{}.norm2",
    "encoder.norm": "norm",
    "head": "head",
    "distillation_head": "head_dist",
}
# First, model arguments of timm that follow from the weights or matter only in training; then arguments with a single
# supported value.
_TIMM_ARGUMENTS = """
    img_size patch_size in_chans num_classes embed_dim depth mlp_ratio num_heads qkv_bias weight_init drop_rate
    pos_drop_rate proj_drop_rate attn_drop_rate drop_path_rate
"""
_TIMM_FIXED = {"class_token": True, "global_pool": "token", "dynamic_img_size": False}


def _timm_weights(config: ViTConfig, names: Iterable[str]) -> list[Weight]:
    fused = [
        Weight(tuple(f"{_BLOCK}.attention.{part}.{leaf}" for part in ("query", "key", "value")),
               f"blocks.{{}}.attn.qkv.{leaf}", to_theirs=concatenated, to_ours=lambda t: t.chunk(3))
        for leaf in ("weight", "bias")
    ]  # fmt: skip
    return [
        Weight("class_token", "cls_token", **_TOKEN),
        Weight("distillation_token", "dist_token", **_TOKEN),
        Weight("positions.table", "pos_embed", **_TABLE),
        *fused,
        *weights_and_biases(_TIMM_LAYERS),
    ]


def _timm_infer(settings: JsonMapping, tensors: Mapping[str, Tensor]) -> JsonObject:
    """Infer all sizes from the weights. Only the number of heads depends on the name in `architecture`."""
    name = str(settings.get("architecture"))
    size = re.fullmatch(r"(?:vit|deit)_([a-z]+)(?:_distilled)?_patch\d+_\d+(?:\..*)?", name)
    if size is None or size[1] not in _TIMM_HEADS:
        raise UserError(
            f"'architecture' is {name!r}; expected vit_SIZE_patchP_N, deit_SIZE_patchP_N or"
            f" deit_SIZE_distilled_patchP_N with a size of {', '.join(_TIMM_HEADS)}"
        )
    arguments = timm.arguments(settings, _TIMM_ARGUMENTS.split(), _TIMM_FIXED)
    patches, table, expand = (
        tensors.get(key) for key in ("patch_embed.proj.weight", "pos_embed", "blocks.0.mlp.fc1.weight")
    )
    if patches is None or table is None or expand is None or patches.dim() != 4 or table.dim() != 3:
        raise UserError(
            "expected patch_embed.proj.weight, pos_embed and blocks.0.mlp.fc1.weight in the shapes of a ViT"
        )
    distilled = "dist_token" in tensors
    return {
        "labels": timm.labels(settings, tensors.get("head.weight")),
        "image_size": math.isqrt(table.shape[1] - 1 - distilled) * patches.shape[-1],
        "patch": patches.shape[-1],
        "channels": patches.shape[1],
        "width": len(patches),
        "layers": sum(bool(re.fullmatch(r"blocks\.\d+\.norm1\.weight", key)) for key in tensors),
        "heads": arguments.get("num_heads") or _TIMM_HEADS[size[1]],
        "feed_forward": len(expand),
        "distilled": distilled,
        "fused": "logits",  # timm predicts with the mean of the logits of both classifiers
        "qkv_bias": "blocks.0.attn.qkv.bias" in tensors,
    }


TIMM_VIT = Family(
    "timm-vit", ViTConfig, ViT,
    Settings((), ours_only={}, theirs_only={}, tolerated={"global_pool": "token"}, ignored=timm.IGNORED),
    _timm_weights,
    architecture=_architecture,
    infer=_timm_infer,
    preprocessing=timm.preprocessing,
)  # fmt: skip
