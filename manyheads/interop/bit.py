"""Read and write BiT in the format of `transformers`; read BiT in the format of `timm`.

Based on transformers 5.23 (modeling_bit.py) and timm 1.0.31 (resnetv2.py). The key `width_factor` of transformers must
be 1: transformers does not apply it to the stem, the last norm and the classifier, and cannot run such a model. A wide
network has a larger `embedding_size` and larger `hidden_sizes`.
"""

from __future__ import annotations

from collections.abc import Iterable

from manyheads.interop.convnets import BLOCK, pointwise, sizes, stages, timm_family, transformers_family
from manyheads.interop.table import Setting, Weight, weights_and_biases
from manyheads.models.bit import Bit, BitConfig


def _rows(stem: str, block: str, norm: str) -> list[Weight]:
    parts = {f"{kind}{number}": f"{kind}{number}" for kind in ("norm", "conv") for number in (1, 2, 3)}
    parts["shortcut"] = "downsample.conv"
    names = {f"{BLOCK}.{ours}": f"{block}.{theirs}" for ours, theirs in parts.items()}
    return weights_and_biases({**names, "stem.{}": stem, "top.{}": norm})


def _weights(config: BitConfig, names: Iterable[str]) -> list[Weight]:
    prefix = "bit." if config.labels else ""
    rows = _rows(f"{prefix}embedder.convolution", f"{prefix}encoder.stages.{{}}.layers.{{}}", f"{prefix}norm")
    return rows + weights_and_biases({"classifier": "classifier.1"})


BIT = transformers_family(
    "Bit", BitConfig, Bit,
    (*sizes(64, (256, 512, 1024, 2048), (3, 4, 6, 3)), Setting("groups", "num_groups", default=32)),
    _weights,
    theirs_only={
        "layer_type": "preactivation", "hidden_act": "relu", "global_padding": None, "output_stride": 32,
        "embedding_dynamic_padding": False, "width_factor": 1,
    },
    ignored=["drop_path_rate"],
)  # fmt: skip
TIMM_BIT = timm_family(
    r"resnetv2_\d+x\d+_bit", "resnetv2_NxN_bit", BIT,
    weights=lambda config, names: _rows("stem.conv", BLOCK, "norm") + pointwise("classifier", "head.fc"),
    stem="stem.conv.weight", classifier="head.fc.weight",
    infer=lambda name, tensors: stages(tensors, "stem.conv.weight", "conv3.weight"),
)  # fmt: skip
