"""A model that only encodes: a BERT without a head, or with one that needs more than a text; to be looked into."""

from __future__ import annotations

from manyheads.tasks.attending import TextPredictor


class Encoder(TextPredictor):
    """A model without a prediction of its own, with its tokenizer: what `manyheads.load` gives for it."""
