"""Load the model for a command, and add the command-line options that several commands share."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from manyheads.cli.parser import whole
from manyheads.core.config import PRECISIONS
from manyheads.errors import UserError
from manyheads.models.presets import PRESETS, suggest_name
from manyheads.training.distributed import is_rank

if TYPE_CHECKING:
    from manyheads.core.config import Config
    from manyheads.core.interface import Model
    from manyheads.runs.recipe import RunConfig
    from manyheads.tasks.loading import LoadedModel


def add_precision(verb: argparse.ArgumentParser) -> None:
    """Add the option --precision to the parser of a command that runs a model."""
    about = "float32 (default), bf16, int8, or auto: fast, near float32"
    verb.add_argument("--precision", choices=PRECISIONS, default="float32", metavar="P", help=about)


def add_processes(verb: argparse.ArgumentParser) -> None:
    """Add the option --processes to the parser of a command that predicts many items.

    Each process computes whole batches; rank 0 writes the results.
    """
    verb.add_argument("--processes", type=whole(1, 1024), metavar="N", default=1,
                      help="number of processes on this machine (default: 1)")  # fmt: skip
    verb.set_defaults(verb=partial(_run_in_processes, verb.get_default("verb")))


def _run_in_processes(verb: Callable[[argparse.Namespace], None], options: argparse.Namespace) -> None:
    if options.processes > 1 and not is_rank():
        from manyheads.training.distributed import launch

        raise SystemExit(launch(options.processes, options.given))
    from manyheads.training.distributed_map import divide_batches

    with divide_batches():
        verb(options)


def add_test_data(verb: argparse.ArgumentParser, default: str) -> None:
    """Add the options of a verb that scores runs: --data, --trust and --skip-bad-lines.

    default  the test data without --data, as its help names them
    """
    verb.add_argument("--data", metavar="PATH", help=f"test data (default: the test data of {default})")
    trust = "read the files that the record of a run names, even if it comes from elsewhere"
    verb.add_argument("--trust", action="store_true", help=trust)
    verb.add_argument(
        "--skip-bad-lines",
        "--skip-bad-images",
        action="store_true",
        help="skip malformed rows of --data and count them",
    )


def add_ensemble(verb: argparse.ArgumentParser, more: str = "") -> None:
    """Add the option --ensemble to the parser of a command that translates; `more` is added to its description."""
    about = f"translators whose predictions are averaged{more}"
    verb.add_argument("--ensemble", nargs="+", action="extend", default=[], metavar="MODEL", help=about)


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
