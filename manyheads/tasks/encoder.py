"""A model that only encodes: a BERT without a head, or with one that needs more than a text; to be looked into."""

from __future__ import annotations

from manyheads import directory
from manyheads.core.runtime import Route
from manyheads.tasks.attending import Attends


class Encoder(Attends):
    """A model without a prediction of its own, with its tokenizer: what `manyheads.load` gives for it."""

    def __init__(self, loaded: directory.Loaded, route: Route) -> None:
        if loaded.tokenizer is None:
            raise ValueError(f"{loaded.path} has no tokenizer.json: text cannot be read without one")
        self.model = loaded.model.to(route.device).eval()
        self.tokenizer = loaded.tokenizer
        self.path, self.family, self.route = loaded.path, loaded.family, route

    def __repr__(self) -> str:
        parameters = sum(p.numel() for p in self.model.parameters())
        return f"Encoder({str(self.path)!r}, {self.family}, {parameters:,} parameters)"
