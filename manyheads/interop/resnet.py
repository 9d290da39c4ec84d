"""Read and write ResNet in the format of `transformers`; read ResNet and SE-ResNet in the format of `timm`.

Based on transformers 5.23 (modeling_resnet.py) and timm 1.0.31 (resnet.py). A ResNet whose first layers are for small
images, or that has squeeze-and-excitation, is saved in the format of Manyheads (interop/own.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from torch import Tensor

from manyheads.files import JsonMapping, JsonObject
from manyheads.interop.convnets import BLOCK, normed, sizes, squeezing, stages, timm_family, transformers_family
from manyheads.interop.table import Choice, Setting, Weight, weights_and_biases
from manyheads.models.resnet import ResNet, ResNetConfig

_BLOCK = "encoder.stages.{}.layers.{}"
_NORMED = {  # name of a convolution with its normalization layer in Manyheads -> name in transformers
    "stem": "embedder.embedder",
    f"{BLOCK}.layers.{{}}": f"{_BLOCK}.layer.{{}}",
    f"{BLOCK}.shortcut": f"{_BLOCK}.shortcut",
}
_CLASSIFIER = "classifier.1"


def _weights(config: ResNetConfig, names: Iterable[str]) -> list[Weight]:
    return _rows("resnet." if config.labels else "")


def _rows(prefix: str) -> list[Weight]:
    return weights_and_biases({"classifier": _CLASSIFIER}) + backbone_rows(prefix)


def backbone_rows(prefix: str = "") -> list[Weight]:
    """Return the conversion table of the tensors of a ResNet without a classifier, after a prefix in files."""
    names = {ours: (f"{theirs}.convolution", f"{theirs}.normalization") for ours, theirs in _NORMED.items()}
    return normed(names, theirs=prefix)


class _Downsampling(Setting):
    """Conversion of the position of the stride within a bottleneck block.

    Other tools may also set this key for basic blocks, for which it has no effect.
    """

    def to_ours(self, theirs: JsonMapping) -> JsonObject:
        return {self.ours: False} if theirs.get("layer_type") == "basic" else super().to_ours(theirs)


RESNET = transformers_family(
    "ResNet", ResNetConfig, ResNet,
    (
        *sizes(64, (256, 512, 1024, 2048), (3, 4, 6, 3)),
        Choice("block", ("layer_type",), {name: [(name,)] for name in ("basic", "bottleneck")}, ("bottleneck",)),
        Setting("halve_first", "downsample_in_first_stage", default=False),
        _Downsampling("stride_in_1x1", "downsample_in_bottleneck", default=False),
    ),
    _weights,
    ours_only={"stem": "7x7", "squeeze": None},
    theirs_only={"hidden_act": "relu"},
)  # fmt: skip


def from_timm(name: str) -> str:
    """Convert a tensor name of timm to the name in transformers.

    In timm, stages and the layers of a block count from 1. A name without a counterpart is returned unchanged, and is
    later reported as unexpected.
    """
    if name.startswith("fc."):
        return f"{_CLASSIFIER}.{name[3:]}"
    part = {"conv": "convolution", "bn": "normalization", "0": "convolution", "1": "normalization"}
    if match := re.fullmatch(r"(conv|bn)1\.(\w+)", name):
        return f"resnet.{_NORMED['stem']}.{part[match[1]]}.{match[2]}"
    match = re.fullmatch(r"layer(\d+)\.(\d+)\.(?:(conv|bn)(\d+)|downsample\.([01])|se\.(fc[12]))\.(\w+)", name)
    if match is None:
        return name
    stage, block, kind, layer, shortcut, squeeze, leaf = match.groups()
    above = "resnet." + _BLOCK.format(int(stage) - 1, block)
    if squeeze:
        return f"{above}.se.{squeeze}.{leaf}"
    place = f"layer.{int(layer) - 1}" if kind else "shortcut"
    return f"{above}.{place}.{part[kind or shortcut]}.{leaf}"


def _timm_weights(config: ResNetConfig, names: Iterable[str]) -> list[Weight]:
    return _rows("resnet.") + squeezing(BLOCK, f"resnet.{_BLOCK}.se.fc1", f"resnet.{_BLOCK}.se.fc2")


_STEM = f"resnet.{_NORMED['stem']}.convolution.weight"


def _timm_infer(name: str, tensors: Mapping[str, Tensor]) -> JsonObject:
    # The last layer of a bottleneck block gives its width; the layers before it are narrower.
    last = 2 if any(".layer.2." in key for key in tensors) else 1
    return {
        "block": "basic" if last == 1 else "bottleneck",
        **stages(tensors, _STEM, f"layer.{last}.normalization.bias"),
        "squeeze": 16 if any(".se." in key for key in tensors) else None,
    }


TIMM_RESNET = timm_family(
    r"(se)?resnet\d+", "resnetN or seresnetN", RESNET,
    weights=_timm_weights, stem=_STEM, classifier=f"{_CLASSIFIER}.weight", infer=_timm_infer, renamed=from_timm,
)  # fmt: skip
