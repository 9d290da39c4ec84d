"""The model that a verb is used on."""

from __future__ import annotations

from typing import Any


def model_for(verb: str, name: str) -> Any:
    """`manyheads.load(name)`, or a ValueError where its model is not for this verb."""
    from manyheads.tasks import load

    predictor = load(name)
    if not hasattr(predictor, verb):
        known = ("translate", "classify", "tag", "fill", "generate", "answer", "attend")
        able = [each for each in known if hasattr(predictor, each)]
        raise ValueError(f"{name}: this model cannot {verb}: use it with manyheads {' or '.join(able)}")
    return predictor
