"""The model that a verb is used on."""

from __future__ import annotations

import argparse
from typing import Any

from manyheads.core.config import PRECISIONS


def add_precision(verb: argparse.ArgumentParser) -> None:
    """The option of all verbs that compute with a loaded model."""
    about = "float32, bf16, int8, or auto: the fastest that stays near float32 (default: float32)"
    verb.add_argument("--precision", choices=PRECISIONS, default="float32", metavar="P", help=about)


def model_for(verb: str, model: str, precision: str = "float32") -> Any:
    """`manyheads.load(model)`, or a ValueError where its model is not for this verb ("outcome": for being scored)."""
    from manyheads.tasks.loading import load

    predictor = load(model, precision=precision)  # type: ignore[arg-type]
    if not hasattr(predictor, verb):
        known = ("translate", "classify", "tag", "fill", "generate", "answer", "attend")
        able = [name for name in known if hasattr(predictor, name)]
        what = "predicts nothing that could be scored" if verb == "outcome" else f"cannot {verb}"
        raise ValueError(f"{model}: this model {what}: use it with manyheads {' or '.join(able)}")
    return predictor
