"""The model that a verb is used on."""

from __future__ import annotations

from typing import Any


def model_for(verb: str, name: str) -> Any:
    """`manyheads.load(name)`, or a ValueError where its model is not for this verb ("outcome": for being scored)."""
    from manyheads.tasks.loading import load

    predictor = load(name)
    if not hasattr(predictor, verb):
        known = ("translate", "classify", "tag", "fill", "generate", "answer", "attend")
        able = [each for each in known if hasattr(predictor, each)]
        what = "predicts nothing that could be scored" if verb == "outcome" else f"cannot {verb}"
        raise ValueError(f"{name}: this model {what}: use it with manyheads {' or '.join(able)}")
    return predictor
