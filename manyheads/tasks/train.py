"""`train` runs a recipe: the user's settings are put on its config, checked, and handed to the room that trains it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from manyheads.errors import UserError
from manyheads.runs.overrides import Setting, apply, as_dict, from_file, from_mapping, leaves
from manyheads.runs.recipe import Recipe
from manyheads.runs.run import Run
from manyheads.tasks.registry import find
from manyheads.training.distributed import distributed_context, reraise_peer_failure, was_restarted
from manyheads.training.progress import ProgressCallback


def train(
    recipe: str,
    overrides: Mapping[str, Any] | list[Setting] | None = None,
    *,
    config: str | Path | None = None,
    out: str | Path | None = None,
    init: str | None = None,
    resume: bool = False,
    dry_run: bool = False,
    max_minutes: float | None = None,
    precision: str | None = None,
    skip_bad_lines: bool = False,
    compile: bool = False,
    processes: int = 1,
    progress: ProgressCallback | None = None,
) -> Any:
    """Run a recipe and return its report: of a finished run the content of its `result.json`.

    `overrides` by dotted key, such as {"training.steps": 100}, win over the YAML file `config`. `out` is
    `runs/RECIPE` unless given. Raises UserError on anything the user can put right.

    The run logs what it does through `logging` (logger "manyheads", mostly level INFO) and prints nothing. `progress`
    receives its progress every half second; `progress=print` prints one line each time.

    Under `torchrun` each process calls this alike; all of them get the report. `processes` are those that the command
    was asked for, and stand in the one that resumes the run.
    """
    ranks = distributed_context()
    chosen = find(recipe)
    if out is not None and not str(out):
        raise UserError("out is empty: give a directory, or leave it out for runs/RECIPE")
    settings = from_file(config) if config else []
    settings += overrides if isinstance(overrides, list) else from_mapping(overrides or {})
    start = chosen.starting_config(init)
    resolved = _one_budget(apply(start, settings), {setting.key for setting in settings})
    before, after = dict(leaves(as_dict(start))), dict(leaves(as_dict(resolved)))
    given = {key: value for key, value in after.items() if any(_within(key, setting.key) for setting in settings)}
    changed = {key: value for key, value in after.items() if key not in before or before[key] != value}
    run = Run(
        recipe, Path(f"runs/{recipe}" if out is None else out), init, resume or was_restarted(), dry_run, max_minutes,
        precision, skip_bad_lines, compile, processes, given={**changed, **given}, overrides=changed, progress=progress,
    )  # fmt: skip
    _check(chosen, resolved, run)
    with reraise_peer_failure():
        if dry_run or not chosen.spreads:
            return ranks.broadcast(lambda: chosen.train(resolved, run))
        return chosen.train(resolved, run)


def _one_budget(config: Any, given: set[str]) -> Any:
    """Of steps and epochs, what is given alone replaces the recipe's other, which would end the run sooner or later."""
    for budget, other in (("steps", "epochs"), ("epochs", "steps")):
        alone = f"training.{budget}" in given and f"training.{other}" not in given
        if alone and getattr(config.training, budget) is not None:
            config = replace(config, training=replace(config.training, **{other: None}))
    return config


def _check(recipe: Recipe, config: Any, run: Run) -> None:
    """Raises a UserError for what the recipe lacks, and for what it has no use for."""
    if run.init is not None and recipe.init == "never":
        raise UserError(f"{run.recipe} starts from no other model: leave --init out")
    if not run.dry_run:
        for name, value in recipe.requires.items():
            if getattr(config, name) is None:
                raise UserError(f"{run.recipe} needs its {name}: {name}={value}")
        if recipe.init == "must" and run.init is None:
            raise UserError(f"{run.recipe} fine-tunes: name the model to start from with --init MODEL")
    if getattr(config, "data", None) is not None:
        run.refuse(("locale", "size"), "of the embedded corpus, and data are given: leave it out")


def _within(key: str, group: str) -> bool:
    return key == group or key.startswith(f"{group}.")
