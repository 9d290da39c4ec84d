"""Attention maps of one input, available as arrays, data frame, picture or interactive page.

`attention_maps(model, *inputs)` runs a model once, and groups the attention maps of its heads by kind of attention. The
kind of attention is called axis:

    "encoder", "decoder", "cross"    for models with cross-attention
    "self"                           for all other models

`manyheads.load(MODEL).attend(...)` also adds the names of the tokens. Every map has the shape
(1, heads, queries, keys). A layer that is applied several times per forward pass (shared weights) has one map per step.
For a model with adaptive halting, the number of steps of each position is recorded, too.
"""

from manyheads.analysis.maps.attention_maps import AttentionMaps
from manyheads.analysis.maps.layers import Calculation, Layer
from manyheads.analysis.maps.recording import MapOptions, Sides, attention_maps
from manyheads.analysis.maps.sides import Side

__all__ = ["AttentionMaps", "Calculation", "Layer", "MapOptions", "Side", "Sides", "attention_maps"]
