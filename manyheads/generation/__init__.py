"""Decoding over one protocol: `step(tokens, cache) -> logits`. Greedy and beam search, forced scoring."""

from manyheads.generation.protocol import Cache, Hypothesis, Step, length_penalty
from manyheads.generation.scoring import score
from manyheads.generation.search import beam_search, greedy

__all__ = ["Cache", "Hypothesis", "Step", "beam_search", "greedy", "length_penalty", "score"]
