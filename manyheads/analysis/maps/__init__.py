"""The attention maps of one input: as arrays, as a table, as a picture, as a page.

`attention_maps(model, *inputs)` runs a model once and sorts what its heads looked at by axis:

    "encoder", "decoder", "cross"    of a model that has cross-attention
    "self"                           of every other one

`manyheads.load(MODEL).attend(...)` does so with the tokens' names. Every map has the exchange shape
(1, heads, queries, keys). A layer that runs several times in one pass (tied depth) gives one map for each step; where
its positions halt, a map tells of every position how many steps it took.
"""

from manyheads.analysis.maps.attention_maps import AttentionMaps
from manyheads.analysis.maps.layers import Calculation, Layer
from manyheads.analysis.maps.recording import MapOptions, Sides, attention_maps
from manyheads.analysis.maps.sides import Side

__all__ = ["AttentionMaps", "Calculation", "Layer", "MapOptions", "Side", "Sides", "attention_maps"]
