"""Read and write RegNetY in the format of `transformers`; read RegNetY in the format of `timm`.

Based on transformers 5.23 (modeling_regnet.py) and timm 1.0.31 (regnet.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from torch import Tensor

from manyheads.files import JsonObject
from manyheads.interop.convnets import BLOCK, normed, sizes, squeezing, stages, timm_family, transformers_family
from manyheads.interop.table import Setting, Weight, weights_and_biases
from manyheads.models.regnet import RegNet, RegNetConfig

_LAYERS = ("conv1", "conv2", "conv3", "shortcut")


def _rows(stem: str, block: str, layers: str, convolution: str, norm: str, squeeze: str, excite: str) -> list[Weight]:
    places = {f"{BLOCK}.{ours}": f"{block}.{theirs}" for ours, theirs in zip(_LAYERS, layers.split(), strict=True)}
    places["stem.{}"] = stem
    rows = normed({ours: (f"{theirs}.{convolution}", f"{theirs}.{norm}") for ours, theirs in places.items()})
    return rows + squeezing(BLOCK, f"{block}.{squeeze}", f"{block}.{excite}")


def _weights(config: RegNetConfig, names: Iterable[str]) -> list[Weight]:
    prefix = "regnet." if config.labels else ""
    return weights_and_biases({"classifier": "classifier.1"}) + _rows(
        f"{prefix}embedder.embedder", f"{prefix}encoder.stages.{{}}.layers.{{}}", "layer.0 layer.1 layer.3 shortcut",
        "convolution", "normalization", "layer.2.attention.0", "layer.2.attention.2",
    )  # fmt: skip


REGNET = transformers_family(
    "RegNet", RegNetConfig, RegNet,
    (*sizes(32, (128, 192, 512, 1088), (2, 6, 12, 2)), Setting("group_width", "groups_width", default=64)),
    _weights,
    theirs_only={"layer_type": "y", "downsample_in_first_stage": True, "hidden_act": "relu"},
)  # fmt: skip


def _timm_weights(config: RegNetConfig, names: Iterable[str]) -> list[Weight]:
    rows = _rows("stem", BLOCK, "conv1 conv2 conv3 downsample", "conv", "bn", "se.fc1", "se.fc2")
    return rows + weights_and_biases({"classifier": "head.fc"})


def _from_timm(name: str) -> str:
    """Count stages and blocks from 0."""
    return re.sub(r"^s(\d+)\.b(\d+)\.", lambda match: f"stages.{int(match[1]) - 1}.blocks.{int(match[2]) - 1}.", name)


def _timm_infer(name: str, tensors: Mapping[str, Tensor]) -> JsonObject:
    grouped = [t.shape[1] for key, t in tensors.items() if key.endswith("conv2.conv.weight") and t.dim() == 4]
    return {"group_width": max(grouped, default=1), **stages(tensors, "stem.conv.weight", "conv3.bn.bias")}


TIMM_REGNET = timm_family(
    r"regnety_\d+", "regnety_N", REGNET, weights=_timm_weights, stem="stem.conv.weight", classifier="head.fc.weight",
    infer=_timm_infer, renamed=_from_timm,
)  # fmt: skip
