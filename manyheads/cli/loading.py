"""Load the model for a command, and add the command-line options that several commands share."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from manyheads.cli.parser import Argument, Flag, Option, whole
from manyheads.core.config import PRECISIONS
from manyheads.errors import UserError
from manyheads.models.presets import PRESETS, suggest_name
from manyheads.training.distributed import is_rank

if TYPE_CHECKING:
    from manyheads.core.config import Config
    from manyheads.core.interface import Model
    from manyheads.runs.recipe import RunConfig
    from manyheads.tasks.loading import LoadedModel


PRECISION = Option("--precision", "P", "float32 (default), bf16, int8, auto (near float32)",
                   choices=PRECISIONS, default="float32")  # fmt: skip
PROCESSES = Option("--processes", "N", "number of processes on this machine (default: 1)", whole(1, 1024), default=1)


def in_processes(verb: Callable[[argparse.Namespace], None]) -> Callable[[argparse.Namespace], None]:
    """Decorator for a command that predicts many items and has the option `PROCESSES`.

    Each process computes whole batches; rank 0 writes the results.
    """

    def run(options: argparse.Namespace) -> None:
        if options.processes > 1 and not is_rank():
            from manyheads.training.distributed import launch

            raise SystemExit(launch(options.processes, options.given))
        from manyheads.training.distributed_map import divide_batches

        with divide_batches():
            verb(options)

    return run


def data_options(default: str) -> tuple[Argument, ...]:
    """Return the options of a command that scores runs.

    default  the test data without --data, as its help names them
    """
    return (
        Option("--data", "PATH", f"test data (default: the test data of {default})"),
        Flag("--trust", "read the files that the record of a run names, even if it comes from elsewhere"),
        Flag("--skip-bad-lines", "skip malformed rows of --data and count them", also="--skip-bad-images"),
    )


def ensemble(more: str = "") -> Option:
    """Return the option for several translators. `more` is added to its description."""
    about = f"translators whose predictions are averaged{more}"
    return Option("--ensemble", "MODEL", about, nargs="+", repeatable=True)


def model_for(verb: str, model: str, precision: str = "float32", ensemble: Sequence[str] = ()) -> LoadedModel:
    """Load a model, or an ensemble. Raise UserError if the command cannot be used with this type of model."""
    from manyheads.tasks.loading import load

    predictor = load(model, precision=precision)  # type: ignore[arg-type]
    if verb not in predictor.verbs:
        what = "has no predictions to score" if verb == "evaluate" else f"does not support {verb}"
        raise UserError(f"{model}: this model {what}: use it with manyheads {' or '.join(predictor.verbs)}")
    if not ensemble:
        return predictor
    if "translate" not in predictor.verbs:
        raise UserError(f"{model}: --ensemble applies to translation models")
    return predictor.with_ensemble([model_for(verb, name, precision) for name in ensemble])


def named(name: str, settings: Sequence[str] = ()) -> tuple[Model[Config], RunConfig | None]:
    """Return a model and the config of its recipe. For a model directory, the config is None.

    `name` is a preset, a recipe file or a model directory; `settings` override values in a recipe file. The model of
    a preset or a recipe is created on the meta device, so its parameters use no memory.
    """
    from manyheads.runs.overrides import apply, from_arguments
    from manyheads.runs.run import planned_model
    from manyheads.tasks.registry import RECIPES

    if name in RECIPES:
        recipe = replace(RECIPES[name], config=apply(RECIPES[name].config, from_arguments(settings)))
        return planned_model(recipe), recipe.config
    if settings:
        raise UserError(f"{settings[0]}: settings apply to recipes, but {name} is not a recipe")
    if name in PRESETS:
        from manyheads.analysis import costs

        return costs.preset_model(name), None
    if not name.startswith("hub:") and not Path(name).exists():
        raise UserError(f"{name}: no such directory, recipe or preset: {suggest_name(name, [*PRESETS, *RECIPES])}")
    from manyheads.directory import load

    return load(name).model, None
