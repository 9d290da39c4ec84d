"""The model that a verb is used on."""

from __future__ import annotations

from typing import Any


def model_for(verb: str, model: str) -> Any:
    """`manyheads.load(model)`, or a ValueError where its model is not for this verb ("outcome": for being scored)."""
    from manyheads.tasks.loading import load

    predictor = load(model)
    if not hasattr(predictor, verb):
        known = ("translate", "classify", "tag", "fill", "generate", "answer", "attend")
        able = [name for name in known if hasattr(predictor, name)]
        what = "predicts nothing that could be scored" if verb == "outcome" else f"cannot {verb}"
        raise ValueError(f"{model}: this model {what}: use it with manyheads {' or '.join(able)}")
    return predictor
