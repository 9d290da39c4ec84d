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
from manyheads.interop import timm
from manyheads.interop.family import Family
from manyheads.interop.keys import ABSENT, ANY_MODEL
from manyheads.interop.labels import TargetRow, classifier_heads, infer_labels, label_names
from manyheads.interop.table import (
    Setting,
    Settings,
    Weight,
    convolutions_and_norms,
    linear_convolutions,
    weights_and_biases,
)
from manyheads.models.efficientnet import FIRST, LAST, STAGES, EfficientNet, EfficientNetConfig
from manyheads.models.presets import PRESETS


def _weights(config: EfficientNetConfig, names: Iterable[str]) -> list[Weight]:
    prefix = "efficientnet." if config.labels else ""
    normed = {
        "stem": (f"{prefix}embeddings.convolution", f"{prefix}embeddings.batchnorm"),
        "top": (f"{prefix}encoder.top_conv", f"{prefix}encoder.top_bn"),
    }
    linear = {}
    # In transformers, the blocks of all stages have consecutive numbers.
    places = [(stage, block) for stage, depth in enumerate(config.depths) for block in range(depth)]
    for index, (stage, block) in enumerate(places):
        ours, theirs = f"stages.{stage}.blocks.{block}", f"{prefix}encoder.blocks.{index}"
        depthwise, project = f"{theirs}.depthwise_conv.depthwise", f"{theirs}.projection.project"
        normed[f"{ours}.expand"] = (f"{theirs}.expansion.expand_conv", f"{theirs}.expansion.expand_bn")
        normed[f"{ours}.depthwise"] = (f"{depthwise}_conv", f"{depthwise}_norm")
        normed[f"{ours}.project"] = (f"{project}_conv", f"{project}_bn")
        linear[f"{ours}.squeeze.squeeze"] = f"{theirs}.squeeze_excite.reduce"
        linear[f"{ours}.squeeze.excite"] = f"{theirs}.squeeze_excite.expand"
    classifier = weights_and_biases({"classifier": "classifier"})
    return classifier + convolutions_and_norms(normed) + linear_convolutions(linear)


class _Padding:
    """Row of a conversion table for the padding, and for the indices of the blocks that pad all sides equally."""

    keys = ("depthwise_padding", "padding")

    def to_ours(self, theirs: JsonMapping) -> JsonObject:
        if theirs.get("padding") is not None:
            return {"padding": theirs["padding"]}
        return {"padding": "end", "centered": theirs.get("depthwise_padding") or ()}

    def to_theirs(self, ours: JsonMapping) -> JsonObject:
        config = EfficientNetConfig(width=ours["width"], depth=ours["depth"])
        if ours["padding"] == "end":
            return {"depthwise_padding": ours["centered"]}
        size = ours["image_size"]
        if ours["padding"] == "center" or size % 2:
            raise UserError(f"padding is {ours['padding']!r} for images of {size} pixels; only 'end' and, for an even"
                            " size, 'same' can be represented")  # fmt: skip
        size //= 2  # by the first convolution
        centered = []
        for stage, sizes in enumerate(STAGES):
            if sizes.stride == 2:
                centered += [sum(config.depths[:stage])] * (size % 2)
                size = (size + 1) // 2
        return {"depthwise_padding": centered, "padding": "same"}


_TABLE = {  # sizes of B0 in the format of transformers
    "kernel_sizes": [stage.kernel for stage in STAGES],
    "in_channels": [FIRST, *(stage.width for stage in STAGES[:-1])],
    "out_channels": [stage.width for stage in STAGES],
    "strides": [stage.stride for stage in STAGES],
    "num_block_repeats": [stage.depth for stage in STAGES],
    "expand_ratios": [stage.expand for stage in STAGES],
}

EFFICIENTNET = Family(
    "efficientnet", EfficientNetConfig, EfficientNet,
    Settings(
        (
            Setting("channels", "num_channels", default=3),
            Setting("image_size", "image_size", default=600),
            Setting("width", "width_coefficient", default=2.0),
            Setting("depth", "depth_coefficient", default=3.1),
            Setting("norm_eps", "batch_norm_eps", default=1e-3),
            Setting("dropout", "dropout_rate", default=0.5),
            Setting("stochastic_depth", "drop_connect_rate", default=0.2),
            _Padding(),
            TargetRow(),
        ),
        ours_only={},
        theirs_only={
            **_TABLE, "depth_divisor": 8, "squeeze_expansion_ratio": 0.25, "hidden_act": "swish", "pooling_type": "mean"
        },
        tolerated=ABSENT,
        ignored=ANY_MODEL | {"hidden_dim", "num_hidden_layers", "batch_norm_momentum"},
    ),
    _weights,
    architecture=lambda config: classifier_heads("EfficientNet")[bool(config.labels)],
    infer=lambda settings, tensors: infer_labels(settings, "EfficientNet"),
    also_written=lambda config: {
        "hidden_dim": config.channels_of(LAST), **(label_names(config.labels) if config.labels else {})
    },
)  # fmt: skip


def _timm_weights(config: EfficientNetConfig, names: Iterable[str]) -> list[Weight]:
    ours, theirs = "stages.{}.blocks.{}", "blocks.{}.{}"
    layers = {"expand": ("conv_pw", "bn1"), "depthwise": ("conv_dw", "bn2"), "project": ("conv_pwl", "bn3")}
    normed = {"stem": ("conv_stem", "bn1"), "top": ("conv_head", "bn2")}
    normed |= {f"{ours}.{layer}": (f"{theirs}.{a}", f"{theirs}.{b}") for layer, (a, b) in layers.items()}
    linear = {f"{ours}.squeeze.{a}": f"{theirs}.se.conv_{b}" for a, b in (("squeeze", "reduce"), ("excite", "expand"))}
    classifier = weights_and_biases({"classifier": "classifier"})
    return classifier + convolutions_and_norms(normed) + linear_convolutions(linear)


def _from_timm(name: str) -> str:
    """Rename the layers of the first stage, which does not expand, like those of the other stages."""
    later = {"conv_pw": "conv_pwl", "bn1": "bn2", "bn2": "bn3"}
    return re.sub(r"^(blocks\.0\.\d+\.)(\w+)", lambda match: match[1] + later.get(match[2], match[2]), name)


def _timm_infer(settings: JsonMapping, tensors: Mapping[str, Tensor]) -> JsonObject:
    name = settings.get("architecture")
    match = re.fullmatch(r"(tf_)?efficientnet_(b[0-7])(\..*)?", str(name))
    if match is None:
        raise UserError(f"'architecture' is {name!r}; expected efficientnet_b0 to b7, or tf_efficientnet_b0 to b7")
    timm.arguments(settings, ("in_chans", "num_classes", "drop_rate", "drop_path_rate"), {"global_pool": "avg"})
    return {
        **PRESETS[f"efficientnet/{match[2]}"],
        **({} if match[1] else {"padding": "center", "norm_eps": 1e-5}),
        "labels": timm.labels(settings, tensors.get("classifier.weight")),
        "channels": timm.input_channels(tensors, "conv_stem.weight"),
    }


TIMM_EFFICIENTNET = Family(
    "timm-efficientnet", EfficientNetConfig, EfficientNet,
    Settings((), ours_only={}, theirs_only={}, tolerated={"global_pool": "avg"}, ignored=timm.IGNORED),
    _timm_weights,
    architecture=EFFICIENTNET.architecture,
    infer=_timm_infer,
    preprocessing=timm.preprocessing,
    renamed=_from_timm,
)  # fmt: skip
