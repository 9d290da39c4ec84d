"""Loading of a model directory as a predictor, an object that makes predictions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, TypeAlias

from manyheads.calls import checked
from manyheads.core.config import Precision
from manyheads.core.runtime import check_device, prepare
from manyheads.directory import UnknownArchitecture
from manyheads.directory import load as load_directory
from manyheads.errors import UserError
from manyheads.models.presets import FAMILIES
from manyheads.tasks.table import PREDICTORS

Method: TypeAlias = Callable[..., Any]  # method of a predictor, with the arguments and results of its class


class LoadedModel(Any):  # type: ignore[misc]  # Subclasses of Any have further attributes, of any type.
    """Type hint for the predictor that `load` returns, which has the methods that `verbs` names, and others."""

    verbs: tuple[str, ...]
    supported: tuple[str, ...]
    reads: Literal["texts", "images"]
    reports: tuple[str, ...]
    labels: Sequence[object]
    mask: str
    threshold: float | dict[str, float] | None
    reads_pairs: bool
    takes_pairs: bool
    needs_pairs: bool
    pairs_only: str
    model: Any
    path: Path
    translate: Method
    classify: Method
    predict_proba: Method
    tag: Method
    answer: Method
    fill: Method
    generate: Method
    embed: Method
    rerank: Method
    relevance: Method
    attend: Method
    lens: Method
    tune_lens: Method
    evaluate: Method
    score: Method
    perplexity: Method


@checked
def load(
    model: str | Path, *, precision: Precision = "float32", threads: int | None = None, device: str | None = None
) -> LoadedModel:
    """Load a run directory, a model directory, or `hub:OWNER/NAME[@REVISION]` as a predictor.

    A predictor is an object that makes predictions with the model.

    precision  number format of the computation, "float32" or "bf16" (bfloat16)
    threads    number of CPU threads. By default, PyTorch chooses it
    device     "cpu", "cuda", or a GPU by its number, such as "cuda:1". By default, the first GPU, or the CPU if there
               is no GPU

    If Manyheads does not know the architecture, but the library `transformers` does and is installed, the predictor has
    `attend`, `lens` and `explain`.

    Raises UserError if the model has no head with which it could make predictions, and for a device that this machine
    lacks.

        >>> translator = manyheads.load("runs/translation")
        >>> translator.supported
        ('translate', 'attend', 'lens', 'evaluate')
    """
    if device is not None:
        check_device(device)
    try:
        loaded = load_directory(model)
    except UnknownArchitecture as error:
        load_foreign: Callable[..., LoadedModel] = import_module("manyheads.tasks.foreign").load_foreign
        return load_foreign(model, error, prepare(precision, threads, device=device))
    head = loaded.model.head_name
    for row in PREDICTORS:
        models = [FAMILIES[family].model for family in row.families]
        if type(loaded.model).__name__ in models and head in row.heads:
            module, name = row.predictor.split(":")
            predictor: type[LoadedModel] = getattr(import_module(f"manyheads.tasks.{module}"), name)
            return predictor(loaded, prepare(precision, threads, device=device))
    kind = f"{loaded.family} model" + (f" with the head {head!r}" if head else "")
    raise UserError(
        f"{model}: a {kind} makes no predictions by itself. Use it as the start of a training run, with --init."
    )
