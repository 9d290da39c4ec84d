"""Encoders in bf16: our models as predictors run them, next to models of transformers with all weights in bf16."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks import encode_bert, encode_vit
from benchmarks.encode_bert import Encoding, padded
from benchmarks.encode_vit import Seeing
from benchmarks.gpu.session import Session
from benchmarks.ours import seeded
from benchmarks.peers import transformers as hugging_face
from benchmarks.work import RELATIVE, relative_error
from manyheads.inference import compile_model

COMPILING = 20.0  # seconds that compiling a model takes at least


def bert(session: Session) -> None:
    cases = [Encoding(2, 16, 16, preset="bert/tiny")] if session.tiny else [
        Encoding(256, 128, 128, 256), Encoding(64, 512, 512, 64)]  # fmt: skip
    for case in cases:
        model: Any = seeded(case.preset, head="none")
        ids, lengths = (t.to(session.device) for t in padded(case.inputs(model.config.vocab)))

        def theirs(other: Any, ids: Tensor = ids) -> Tensor:
            states: Tensor = other(ids, attention_mask=torch.ones_like(ids)).last_hidden_state
            return states

        where = {"work": "encode-bert", "case": f"{case.texts} x {case.longest}", "unit": "texts/s"}
        limit = case.texts / encode_bert.least(case, "bf16", session.rates)
        ours = partial(_states, ids, lengths)
        _measure(session, where, model, "AutoModel", ours, theirs, case.texts, limit)


def _states(ids: Tensor, lengths: Tensor, model: Any) -> Tensor:
    states: Tensor = model(ids, lengths)
    return states


def vit(session: Session) -> None:
    case = Seeing(2, "vit/7-28") if session.tiny else Seeing(256)
    model = seeded(case.preset)
    images = case.inputs(model.config).to(session.device)
    where = {"work": "encode-vit", "case": f"{case.images} images", "unit": "images/s"}
    limit = case.images / encode_vit.least(case, "bf16", session.rates)
    half = images.bfloat16()
    _measure(session, where, model, "AutoModelForImageClassification", lambda m: m(images),
             lambda other: other(half).logits, case.images, limit)  # fmt: skip


def _measure(
    session: Session, where: Mapping[str, Any], model: Any, auto: str, ours: Callable[[Any], Tensor],
    theirs: Callable[[Any], Tensor], units: int, limit: float,
) -> None:  # fmt: skip
    model = model.to(session.device)
    with session.plain():
        reference = ours(model).float().cpu()

    def found(run: Callable[[], Tensor]) -> Mapping[str, Any]:
        def turn() -> float:
            run()
            return units

        error = relative_error(reference, run().float().cpu())
        return {"figures": session.figures(turn), "error": error, "error_is": RELATIVE, "limit": limit}

    def measure_ours() -> Mapping[str, Any]:
        compiled = compile_model(model, session.compute())

        def run() -> Tensor:
            with torch.inference_mode(), compiled.compute.autocast():
                return ours(compiled.module)

        return found(run)

    def measure_theirs(compiled: bool) -> Mapping[str, Any]:
        other = hugging_face.twin(model, auto, "bf16").eval().to(session.device)
        called = torch.compile(other) if compiled else other

        def run() -> Tensor:
            with session.plain("bf16"):
                return theirs(called)

        return found(run)

    session.attempt(where, "ours bf16", measure_ours)
    session.attempt(where, "transformers bf16", lambda: measure_theirs(False))
    session.attempt(where, "transformers bf16 compiled", lambda: measure_theirs(True), COMPILING)
