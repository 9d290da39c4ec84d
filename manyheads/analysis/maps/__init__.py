"""Attention maps of one input as arrays, data frame, picture or interactive page.

`attention_maps(model, *inputs)` runs a model once and sorts the maps of its heads by axis:

    "encoder", "decoder", "cross"    for models with cross-attention
    "self"                           for all other models

`manyheads.load(MODEL).attend(...)` also adds the names of the tokens. Every map has the shape
(1, heads, queries, keys). A layer that runs several times per pass (tied depth) has one map per step. With halting,
the number of steps of each position is recorded, too.
"""

from manyheads.analysis.maps.attention_maps import AttentionMaps
from manyheads.analysis.maps.layers import Calculation, Layer
from manyheads.analysis.maps.recording import MapOptions, Sides, attention_maps
from manyheads.analysis.maps.sides import Side

__all__ = ["AttentionMaps", "Calculation", "Layer", "MapOptions", "Side", "Sides", "attention_maps"]
