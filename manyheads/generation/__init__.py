"""Decoding: generation of token sequences with any model that has `step(tokens, cache) -> logits`.

Contains greedy and beam search, sampling, and scoring of given target texts.
"""

from manyheads.generation.continuous import ContinuousBatch, Text, sample
from manyheads.generation.protocol import Cache, Hypothesis, Step, length_penalty
from manyheads.generation.sampling import Sampling
from manyheads.generation.scoring import score
from manyheads.generation.search import beam_search, greedy
from manyheads.generation.text import TextStream

__all__ = [
    "Cache",
    "ContinuousBatch",
    "Hypothesis",
    "Sampling",
    "Step",
    "Text",
    "TextStream",
    "beam_search",
    "greedy",
    "length_penalty",
    "sample",
    "score",
]
