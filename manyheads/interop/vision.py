"""Models of images that no other tool knows, under names of our own."""

from __future__ import annotations

from typing import Any

from manyheads.interop.family import own_family
from manyheads.models.conv_attention import ConvAttention, ConvAttentionConfig
from manyheads.models.local_attention import LocalAttentionConfig, LocalAttentionNet
from manyheads.models.nonlocal_net import NonLocalConfig, NonLocalNet
from manyheads.models.resnet import ResNet, ResNetConfig

_MOST: dict[str, float] = {"image_size": 100_000, "channels": 100_000, "depths": 1000, "layers": 1000,
                           "widths": 100_000, "stem_width": 100_000, "window": 1000,
                           "stem_window": 1000, "query_block": 1000}  # fmt: skip
_MODELS: tuple[tuple[str, type[Any], type[Any]], ...] = (
    ("manyheads-resnet", ResNetConfig, ResNet),  # what transformers' ResNet has not
    ("manyheads-nonlocal", NonLocalConfig, NonLocalNet),
    ("manyheads-local-attention", LocalAttentionConfig, LocalAttentionNet),
    ("manyheads-conv-attention", ConvAttentionConfig, ConvAttention),
)
VISION = tuple(own_family(name, config, module, most=_MOST) for name, config, module in _MODELS)
