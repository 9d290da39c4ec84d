"""Read and write ResNet in the format of `transformers`; read ResNet and SE-ResNet in the format of `timm`.

Based on transformers 5.23 (modeling_resnet.py) and timm 1.0.31 (resnet.py). A ResNet whose first layers are for small
images, or that has squeeze-and-excitation, is saved in the format of Manyheads (interop/own.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from torch import Tensor

from manyheads.errors import UserError
from manyheads.files import JsonMapping, JsonObject
from manyheads.interop import timm
from manyheads.interop.family import Family
from manyheads.interop.keys import ABSENT, ANY_MODEL
from manyheads.interop.labels import TargetRow, classifier_heads, infer_labels, label_names
from manyheads.interop.table import (
    Choice,
    Setting,
    Settings,
    Weight,
    convolutions_and_norms,
    linear_convolutions,
    weights_and_biases,
)
from manyheads.models.resnet import ResNet, ResNetConfig

_BLOCK = "encoder.stages.{}.layers.{}"
_NORMED = {  # name of a convolution with its normalization layer in Manyheads -> name in transformers
    "stem": "embedder.embedder",
    "stages.{}.blocks.{}.layers.{}": f"{_BLOCK}.layer.{{}}",
    "stages.{}.blocks.{}.shortcut": f"{_BLOCK}.shortcut",
}
_CLASSIFIER = "classifier.1"
_ARCHITECTURES = classifier_heads("ResNet")


def _weights(config: ResNetConfig, names: Iterable[str]) -> list[Weight]:
    return _rows("resnet." if config.labels else "")


def _rows(prefix: str) -> list[Weight]:
    return weights_and_biases({"classifier": _CLASSIFIER}) + backbone_rows(prefix)


def backbone_rows(prefix: str = "") -> list[Weight]:
    """Return the conversion table of the tensors of a ResNet without a classifier, after a prefix in files."""
    parts = ("convolution", "normalization")
    return convolutions_and_norms(
        {ours: (f"{prefix}{theirs}.{parts[0]}", f"{prefix}{theirs}.{parts[1]}") for ours, theirs in _NORMED.items()}
    )


_IGNORED = {"_out_features", "_out_indices", "out_features", "out_indices", "stage_names"}


class _Downsampling(Setting):
    """Conversion of the position of the stride within a bottleneck block.

    Other tools may also set this key for basic blocks, for which it has no effect.
    """

    def to_ours(self, theirs: JsonMapping) -> JsonObject:
        return {self.ours: False} if theirs.get("layer_type") == "basic" else super().to_ours(theirs)


RESNET = Family(
    "resnet", ResNetConfig, ResNet,
    Settings(
        (
            Setting("channels", "num_channels", default=3),
            Setting("stem_width", "embedding_size", default=64),
            Setting("widths", "hidden_sizes", default=(256, 512, 1024, 2048)),
            Setting("depths", "depths", default=(3, 4, 6, 3)),
            Choice("block", ("layer_type",), {name: [(name,)] for name in ("basic", "bottleneck")}, ("bottleneck",)),
            Setting("halve_first", "downsample_in_first_stage", default=False),
            _Downsampling("stride_in_1x1", "downsample_in_bottleneck", default=False),
            Setting("image_size", "image_size", default=224),  # only Manyheads writes this key
            TargetRow(),
        ),
        ours_only={"stem": "7x7", "squeeze": None},
        theirs_only={"hidden_act": "relu"},
        tolerated=ABSENT,
        ignored=ANY_MODEL | _IGNORED,
    ),
    _weights,
    architecture=lambda config: _ARCHITECTURES[bool(config.labels)],
    infer=lambda settings, tensors: infer_labels(settings, "ResNet"),
    also_written=lambda config: label_names(config.labels) if config.labels else {},
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
    parts = {"squeeze": "fc1", "excite": "fc2"}
    return _rows("resnet.") + linear_convolutions(
        {f"stages.{{}}.blocks.{{}}.squeeze.{ours}": f"resnet.{_BLOCK}.se.{theirs}" for ours, theirs in parts.items()}
    )


# Model arguments of timm that follow from the weights, or that matter only in training.
_TIMM_ARGUMENTS = "block layers channels in_chans num_classes drop_rate drop_path_rate zero_init_last"
_TIMM_FIXED = {"global_pool": "avg", "block_args": {"attn_layer": "se"}}


def _timm_infer(settings: JsonMapping, tensors: Mapping[str, Tensor]) -> JsonObject:
    """Infer all layer sizes from the weights.

    The name `architecture` is used only to reject variants that compute differently, for example with other pooling.
    """
    name = settings.get("architecture")
    if not re.fullmatch(r"(se)?resnet\d+(\..*)?", str(name)):
        raise UserError(f"'architecture' is {name!r}; expected resnetN or seresnetN")
    timm.arguments(settings, _TIMM_ARGUMENTS.split(), _TIMM_FIXED)
    stem = f"resnet.{_NORMED['stem']}.convolution.weight"
    # The last layer of a bottleneck block gives its width; the layers before it are narrower.
    last = 2 if any(".layer.2." in key for key in tensors) else 1
    return {
        "labels": timm.labels(settings, tensors.get(f"{_CLASSIFIER}.weight")),
        "channels": timm.input_channels(tensors, stem),
        "stem_width": len(tensors[stem]),
        "block": "basic" if last == 1 else "bottleneck",
        **timm.stages(tensors, rf".*\.stages\.(\d+)\.layers\.\d+\.layer\.{last}\.normalization\.bias"),
        "squeeze": 16 if any(".se." in key for key in tensors) else None,
    }


TIMM_RESNET = Family(
    "timm-resnet", ResNetConfig, ResNet,
    Settings((), ours_only={}, theirs_only={}, tolerated={"global_pool": "avg"}, ignored=timm.IGNORED),
    _timm_weights,
    architecture=RESNET.architecture,
    infer=_timm_infer,
    preprocessing=timm.preprocessing,
    renamed=from_timm,
)  # fmt: skip
