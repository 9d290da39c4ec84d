"""Read and write DINOv2, with and without registers, in the format of `transformers`.

Based on transformers 5.23 (modeling_dinov2.py, modeling_dinov2_with_registers.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import Tensor

from manyheads.errors import UserError
from manyheads.files import JsonMapping, JsonObject
from manyheads.interop.family import Family
from manyheads.interop.keys import ABSENT, ANY_MODEL, WIDTH, architecture
from manyheads.interop.labels import label_names, read_labels, read_target
from manyheads.interop.table import Setting, SettingRow, Settings, Weight, weights_and_biases
from manyheads.interop.vit import BLOCK, COMMON, LAYERS, PLAIN, TABLE, TOKEN
from manyheads.models.vit import ViT, ViTConfig


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


_LAYERS = {
    **{ours: theirs for ours, theirs in LAYERS.items() if BLOCK not in ours or ".attention." in ours},
    f"{BLOCK}.attention_norm": "encoder.layer.{}.norm1",
    f"{BLOCK}.feed_forward.expand": "encoder.layer.{}.mlp.fc1",
    f"{BLOCK}.feed_forward.contract": "encoder.layer.{}.mlp.fc2",
    f"{BLOCK}.feed_forward_norm": "encoder.layer.{}.norm2",
}
_IGNORED = """
    apply_layernorm out_features out_indices reshape_hidden_states stage_names use_mask_token _out_features _out_indices
"""


def _dinov2(model_type: str, name: str, patch: int, registers: SettingRow | None) -> Family[ViTConfig]:
    """Return the format of DINOv2 (Oquab 2023), with or without a classifier.

    name  beginning of the architecture names. The mask token is used only in pretraining, so it is neither read nor
          written
    """
    bare, labeled = f"{name}Model", f"{name}ForImageClassification"

    def prefix(config: ViTConfig) -> str:
        return f"{model_type}." if config.labels else ""

    def weights(config: ViTConfig, names: Iterable[str]) -> list[Weight]:
        begin = prefix(config)
        return [
            Weight("class_token", f"{begin}embeddings.cls_token", **TOKEN),
            Weight("register_tokens", f"{begin}embeddings.register_tokens", **TABLE),
            Weight("positions.table", f"{begin}embeddings.position_embeddings", **TABLE),
            Weight(f"{BLOCK}.attention_scale", f"{begin}encoder.layer.{{}}.layer_scale1.lambda1"),
            Weight(f"{BLOCK}.feed_forward_scale", f"{begin}encoder.layer.{{}}.layer_scale2.lambda1"),
            *weights_and_biases({**{o: begin + t for o, t in _LAYERS.items()}, "head": "classifier"}),
        ]

    def infer(settings: JsonMapping, tensors: Mapping[str, Tensor]) -> JsonObject:
        if architecture(settings, [bare, labeled]) == bare:
            return {"labels": (), "pool": "class"}
        labels = read_labels(settings)
        return {"labels": labels, "target": read_target(settings, labels), "pool": "class_patches"}

    def also_written(config: ViTConfig) -> JsonObject:
        if config.pool != (pool := "class_patches" if config.labels else "class"):
            raise UserError(f"pool is {config.pool!r}; only {pool!r} can be represented")
        labels = label_names(config.labels) if config.labels else {}
        return labels if registers else labels | {"use_mask_token": False}

    rows = (
        *COMMON,
        _Ratio("feed_forward", "mlp_ratio", default=4),
        Setting("patch", "patch_size", default=patch),
        Setting("norm_eps", "layer_norm_eps", default=1e-6),
        Setting("layer_scale", "layerscale_value", default=1.0),
    )
    named = ("pool", "layer_scale", *(["registers"] if registers else []))
    fixed = {key: value for key, value in PLAIN.items() if key not in named}
    return Family(
        model_type, ViTConfig, ViT,
        Settings(
            (*rows, registers) if registers else rows,
            ours_only=fixed | {"representation": None, "dropout": 0.0, "stochastic_depth": 0.0},
            theirs_only={"use_swiglu_ffn": False, "hidden_dropout_prob": 0.0, "drop_path_rate": 0.0},
            tolerated=ABSENT,
            ignored=ANY_MODEL | set(_IGNORED.split()),
        ),
        weights,
        architecture=lambda config: labeled if config.labels else bare,
        infer=infer,
        computed=lambda config: {f"{prefix(config)}embeddings.mask_token": None},
        also_written=also_written,
    )  # fmt: skip


DINOV2 = _dinov2("dinov2", "Dinov2", 14, None)
_REGISTERS = Setting("registers", "num_register_tokens", default=4)
DINOV2_REGISTERS = _dinov2("dinov2_with_registers", "Dinov2WithRegisters", 16, _REGISTERS)
