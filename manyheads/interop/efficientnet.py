"""Read and write EfficientNet in the format of `transformers`; read EfficientNet-B0 to B7 in the format of `timm`.

Based on transformers 5.23 (modeling_efficientnet.py) and timm 1.0.31 (efficientnet.py). In transformers, the padding of
a block is the one that TensorFlow uses for images of `image_size` pixels, also for other images. Manyheads adds the key
`padding` if its model pads as TensorFlow does for every size.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from torch import Tensor

from manyheads.errors import UserError
from manyheads.files import JsonMapping, JsonObject
from manyheads.interop.convnets import BLOCK, normed, squeezing, timm_family, transformers_family
from manyheads.interop.table import Setting, Weight, weights_and_biases
from manyheads.models.efficientnet import FIRST, LAST, STAGES, EfficientNet, EfficientNetConfig
from manyheads.models.presets import PRESETS

_CLASSIFIER = weights_and_biases({"classifier": "classifier"})


def _weights(config: EfficientNetConfig, names: Iterable[str]) -> list[Weight]:
    prefix = "efficientnet." if config.labels else ""
    outside = {
        "stem": ("embeddings.convolution", "embeddings.batchnorm"), "top": ("encoder.top_conv", "encoder.top_bn")
    }  # fmt: skip
    layers = {
        "expand": ("expansion.expand_conv", "expansion.expand_bn"),
        "depthwise": ("depthwise_conv.depthwise_conv", "depthwise_conv.depthwise_norm"),
        "project": ("projection.project_conv", "projection.project_bn"),
    }
    rows = _CLASSIFIER + normed(outside, theirs=prefix)
    # In transformers, the blocks of all stages have consecutive numbers.
    places = [(stage, block) for stage, depth in enumerate(config.depths) for block in range(depth)]
    for number, place in enumerate(places):
        ours, theirs = BLOCK.format(*place), f"{prefix}encoder.blocks.{number}."
        rows += normed(layers, f"{ours}.", theirs)
        rows += squeezing(ours, f"{theirs}squeeze_excite.reduce", f"{theirs}squeeze_excite.expand")
    return rows


class _Padding:
    """Row of a conversion table for the padding, and for the numbers of the blocks that pad all sides equally."""

    keys = ("depthwise_padding", "padding")

    def to_ours(self, theirs: JsonMapping) -> JsonObject:
        if theirs.get("padding") is not None:
            return {"padding": theirs["padding"]}
        return {"padding": "end", "centered": theirs.get("depthwise_padding") or ()}

    def to_theirs(self, ours: JsonMapping) -> JsonObject:
        padding, size = ours["padding"], ours["image_size"]
        if padding == "end":
            return {"depthwise_padding": ours["centered"]}
        if padding == "center" or size % 2:
            raise UserError(
                f"padding is {padding!r} for images of {size} pixels; only 'end' and, for an even size, 'same' can be"
                " represented"
            )
        centered, number, size = [], 0, size // 2
        for stage, depth in zip(STAGES, EfficientNetConfig(depth=ours["depth"]).depths, strict=True):
            if stage[2] == 2:
                centered += [number] * (size % 2)
                size = (size + 1) // 2
            number += depth
        return {"depthwise_padding": centered, "padding": "same"}


_EXPAND, _KERNELS, _STRIDES, _WIDTHS, _DEPTHS = map(list, zip(*STAGES, strict=True))
EFFICIENTNET = transformers_family(
    "EfficientNet", EfficientNetConfig, EfficientNet,
    (
        Setting("width", "width_coefficient", default=2.0),
        Setting("depth", "depth_coefficient", default=3.1),
        Setting("norm_eps", "batch_norm_eps", default=1e-3),
        Setting("dropout", "dropout_rate", default=0.5),
        Setting("stochastic_depth", "drop_connect_rate", default=0.2),
        _Padding(),
    ),
    _weights,
    theirs_only={
        "expand_ratios": _EXPAND, "kernel_sizes": _KERNELS, "strides": _STRIDES, "num_block_repeats": _DEPTHS,
        "in_channels": [FIRST, *_WIDTHS[:-1]], "out_channels": _WIDTHS, "depth_divisor": 8,
        "squeeze_expansion_ratio": 0.25, "hidden_act": "swish", "pooling_type": "mean",
    },
    image_size=600,
    ignored=("hidden_dim", "num_hidden_layers", "batch_norm_momentum"),
    also_written=lambda config: {"hidden_dim": config.channels_of(LAST)},
)  # fmt: skip


def _timm_weights(config: EfficientNetConfig, names: Iterable[str]) -> list[Weight]:
    layers = {"expand": ("conv_pw", "bn1"), "depthwise": ("conv_dw", "bn2"), "project": ("conv_pwl", "bn3")}
    rows = _CLASSIFIER + normed({"stem": ("conv_stem", "bn1"), "top": ("conv_head", "bn2")})
    rows += normed(layers, f"{BLOCK}.", "blocks.{}.{}.")
    return rows + squeezing(BLOCK, "blocks.{}.{}.se.conv_reduce", "blocks.{}.{}.se.conv_expand")


def _from_timm(name: str) -> str:
    """Rename the layers of the first stage, which does not expand, like those of the other stages."""
    later = {"conv_pw": "conv_pwl", "bn1": "bn2", "bn2": "bn3"}
    return re.sub(r"^(blocks\.0\.\d+\.)(\w+)", lambda match: match[1] + later.get(match[2], match[2]), name)


def _timm_infer(name: str, tensors: Mapping[str, Tensor]) -> JsonObject:
    variant = {} if name.startswith("tf_") else {"padding": "center", "norm_eps": 1e-5}
    return {**PRESETS[f"efficientnet/{name[-2:]}"], **variant}


TIMM_EFFICIENTNET = timm_family(
    "(tf_)?efficientnet_b[0-7]", "efficientnet_b0 to b7, or tf_efficientnet_b0 to b7", EFFICIENTNET,
    weights=_timm_weights, stem="conv_stem.weight", classifier="classifier.weight", infer=_timm_infer,
    renamed=_from_timm,
)  # fmt: skip
