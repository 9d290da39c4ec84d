"""Entry point for training: `train` applies the user's settings to a recipe, checks the settings and starts the run."""

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
    """Run a recipe and return its report, which for a finished run is the content of `result.json`.

    recipe     name of the recipe, as listed by `manyheads recipes`
    overrides  settings by dotted key, such as {"training.steps": 100}; they override the settings in the YAML file
               `config`
    out        run directory; None: `runs/RECIPE`
    init       model to start from
    processes  number of processes that the user's command started; the printed command for resuming the run repeats it
    progress   callback that receives the training progress every half second; `progress=print` prints one line each
               time

    The run reports through `logging` (logger "manyheads", mostly level INFO) and prints nothing. Under `torchrun`,
    every process calls this function with the same arguments, and all of them get the report. Raises UserError on any
    error that the user can fix.

        >>> plan = manyheads.train("translation", {"training.steps": 100}, dry_run=True)
        >>> plan["parameters"]
        1250304
        >>> report = manyheads.train("conv-attention/theorem", {"kernels": [3], "alphas": [46]}, out="runs/theorem")
        >>> sorted(report["metrics"])
        ['log10_error_3x3']
    """
    context = distributed_context()
    selected = find(recipe)
    if out is not None and not str(out):
        raise UserError("out is empty: give a directory, or leave it out for runs/RECIPE")
    settings = from_file(config) if config else []
    settings += overrides if isinstance(overrides, list) else from_mapping(overrides or {})
    start = selected.starting_config(init)
    resolved = _one_budget(apply(start, settings), {setting.key for setting in settings})
    defaults, result = dict(leaves(as_dict(start))), dict(leaves(as_dict(resolved)))
    chosen = {key: value for key, value in result.items() if any(_within(key, setting.key) for setting in settings)}
    changed = {key: value for key, value in result.items() if key not in defaults or defaults[key] != value}
    run = Run(
        recipe, Path(f"runs/{recipe}" if out is None else out), init, resume or was_restarted(), dry_run, max_minutes,
        precision, skip_bad_lines, compile, processes, own_data="data" in chosen and "data" not in selected.requires,
        given=changed | chosen, overrides=changed, progress=progress,
    )  # fmt: skip
    _check(selected, resolved, run)
    with reraise_peer_failure():
        if dry_run or not selected.spreads:
            return context.broadcast(lambda: selected.train(resolved, run))
        return selected.train(resolved, run)


def _one_budget(config: Any, keys: set[str]) -> Any:
    """Return the config with only those limits on the training duration that the user set.

    For example, if the user sets only the number of steps, the recipe's number of epochs is removed.
    """
    for budget, other in (("steps", "epochs"), ("epochs", "steps")):
        alone = f"training.{budget}" in keys and f"training.{other}" not in keys
        if alone and getattr(config.training, budget) is not None:
            config = replace(config, training=replace(config.training, **{other: None}))
    return config


def _check(recipe: Recipe, config: Any, run: Run) -> None:
    """Raise UserError if a required setting is missing, or if an option has no effect for the recipe."""
    if run.init is not None and recipe.init == "never":
        raise UserError(f"{run.recipe} cannot start from another model: leave --init out")
    if not run.dry_run:
        for name, value in recipe.requires.items():
            if getattr(config, name) is None:
                raise UserError(f"{run.recipe} requires the setting {name}: {name}={value}")
        if recipe.init == "must" and run.init is None:
            raise UserError(f"{run.recipe} fine-tunes a model: give the model to start from with --init MODEL")
    if getattr(config, "data", None) is not None:
        idle = ("locale", "size")
        run.refuse(idle, "no effect with data, only with the embedded corpus: leave it out", changed_only=True)


def _within(key: str, group: str) -> bool:
    return key == group or key.startswith(f"{group}.")
