"""Entry point for training: `train` applies the user's settings to a recipe, checks the settings and starts the run."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from manyheads.data.readers.memory import IN_MEMORY
from manyheads.errors import UserError
from manyheads.runs.overrides import (
    Setting,
    apply,
    as_dict,
    from_arguments,
    from_file,
    from_mapping,
    leaves,
    with_full_keys,
)
from manyheads.runs.recipe import Recipe
from manyheads.runs.result import RunResult
from manyheads.runs.resuming import last_checkpoint, options_to_save, restored, saved_options
from manyheads.runs.run import Run
from manyheads.tasks.registry import find
from manyheads.tasks.trained_run import TrainedRun
from manyheads.training.config import RESUMABLE
from manyheads.training.distributed import distributed_context, reraise_peer_failure, was_restarted
from manyheads.training.progress import LogCallback, ProgressCallback


def train(
    recipe: str | None = None,
    overrides: Mapping[str, Any] | list[Setting] | None = None,
    *,
    train: Any = None,
    validation: Any = None,
    test: Any = None,
    config: str | Path | None = None,
    out: str | Path | None = None,
    init: str | None = None,
    resume: bool | str | Path = False,
    dry_run: bool = False,
    max_minutes: float | None = None,
    precision: str | None = None,
    skip_bad_lines: bool = False,
    compile: bool = False,
    processes: int = 1,
    progress: ProgressCallback | bool | None = None,
    callbacks: Sequence[LogCallback] = (),
    **settings: Any,
) -> TrainedRun:
    """Run a recipe and return the run: the content of `result.json`, with the model, its metrics and its training log.

    recipe      name of the recipe, as listed by `manyheads recipes`
    overrides   settings by dotted key, such as {"training.steps": 100}; they override the settings in the YAML file
                `config`. An unambiguous last part of a key, such as "steps", is enough
    train, validation, test
                data: a path, or data in memory (a list of dictionaries or tuples, a frame of pandas or Polars, a
                `datasets.Dataset`, or a PyTorch dataset of images). `train` may be a mapping with all splits
    out         run directory; None: `runs/RECIPE`
    init        model to start from
    resume      directory of the run to resume, with its own recipe and settings; True: the run in `out`. The limits of
                the run may change, also those of a finished run
    processes   number of processes that the user's command started
    progress    callback that receives the training progress every half second, such as `print`; False: no messages
                except errors
    callbacks   functions that receive each entry of the training log; one that returns False stops the run
    settings    further settings by the last part of their key, such as steps=100

    The run reports through `logging` (logger "manyheads", mostly level INFO) and prints nothing. Under `torchrun`,
    every process calls this function with the same arguments, and all of them get the report. Raises UserError on any
    error that the user can fix. A dry run, and a recipe that trains several models, return another report.

        >>> plan = manyheads.train("translation", steps=100, dry_run=True)
        >>> plan["parameters"]
        1250304
        >>> report = manyheads.train("conv-attention/theorem", {"kernels": [3], "alphas": [46]}, out="runs/theorem")
        >>> sorted(report["metrics"])
        ['log10_error_3x3']
    """
    context = distributed_context()
    if not isinstance(resume, bool):
        out, resume = resume, True
    if out is not None and not str(out):
        raise UserError("out is empty: give a directory, or leave it out for runs/RECIPE")
    if recipe is None and (out is None or not resume):
        raise UserError("expected a recipe (`manyheads recipes` lists them), or --resume RUN to resume a run")
    directory = Path(f"runs/{recipe}" if out is None else out)
    paths, memory = _data({"train": train, "validation": validation, "test": test})
    made = from_file(config) if config else []
    made += overrides if isinstance(overrides, list) else from_mapping(overrides or {})
    made += from_mapping({**paths, **settings})
    saved = saved_options(directory) if resume else {}
    name = _recipe_of(directory, recipe, saved)
    selected = find(name)
    if memory and not hasattr(selected.config, "data"):
        raise UserError(f"{name} generates its own data: leave out {', '.join(memory)}")
    options: dict[str, Any] = {
        "init": init or saved.get("init"), "precision": precision or saved.get("precision"),
        "skip_bad_lines": skip_bad_lines or saved.get("skip_bad_lines", False),
        "compile": compile or saved.get("compile", False), "processes": processes,
    }  # fmt: skip
    resolved, given = _configured(selected, made, options, saved, directory)
    run = Run(
        name, directory, resume=resume or was_restarted(), dry_run=dry_run, max_minutes=max_minutes,
        progress=progress if callable(progress) else print if progress else None, callbacks=callbacks, memory=memory,
        saved=options_to_save(name, as_dict(resolved), given=given["given"], overrides=given["overrides"], **options),
        own_data="data" in given["given"] and "data" not in selected.requires, **given, **options,
    )  # fmt: skip
    _check(selected, resolved, run)
    with reraise_peer_failure(), _quiet(progress is False):
        if dry_run or not selected.spreads:
            report = context.broadcast(lambda: selected.train(resolved, run))
        else:
            report = selected.train(resolved, run)
    # A dry run or an ablation has a report of another form.
    return TrainedRun(report, directory) if report is None or isinstance(report, RunResult) else report


@contextmanager
def _quiet(quiet: bool) -> Iterator[None]:
    """If `quiet` is true, log only errors during the `with` block."""
    logger = logging.getLogger("manyheads")
    level = logger.level
    logger.setLevel(logging.ERROR if quiet else level)
    try:
        yield
    finally:
        logger.setLevel(level)


def _data(given: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the settings for data in files, and the data in memory by split."""
    splits = given["train"] if isinstance(given["train"], Mapping) else {"train": given["train"]}
    if given["train"] is splits and "train" not in splits:
        raise UserError(f"train: expected a split 'train', found {', '.join(map(repr, splits))}")
    given = {name: data for name in given if (data := splits.get(name, given[name])) is not None}
    paths = {name: str(data) for name, data in given.items() if isinstance(data, str | Path)}
    memory = {name: data for name, data in given.items() if name not in paths}
    if memory and "train" not in memory:
        raise UserError(f"{', '.join(memory)}: in memory, but the training data are not; give them as train=")
    train = {"data": IN_MEMORY} if memory else {"data": paths.pop("train")} if "train" in paths else {}
    return {**paths, **train}, memory


def _configured(
    recipe: Recipe, settings: list[Setting], options: Mapping[str, Any], saved: Mapping[str, Any], out: Path
) -> tuple[Any, dict[str, Any]]:
    """Return the configuration of a run, and the fields of `Run` with the user's settings of all sessions."""
    start = recipe.starting_config(options["init"])
    settings = with_full_keys(start, [*from_arguments(saved.get("arguments", [])), *settings])
    base = restored(start, saved["settings"]) if "settings" in saved else start
    if "arguments" in saved and (checkpoint := last_checkpoint(out)):
        base = replace(base, training=base.training.resumed(checkpoint["config"], ()))
    resolved = _one_budget(apply(base, settings), {setting.key for setting in settings})
    defaults, before, result = (dict(leaves(as_dict(config))) for config in (start, base, resolved))
    now = {
        key: value
        for key, value in result.items()
        if key not in before or before[key] != value or any(_within(key, setting.key) for setting in settings)
    }
    overrides = {**saved.get("overrides", {}), **now}
    overrides = {key: value for key, value in overrides.items() if key not in defaults or defaults[key] != value}
    changed = [*(key.removeprefix("training.") for key in now), *(RESUMABLE if saved else ())]
    return resolved, {"given": {**saved.get("given", {}), **now}, "overrides": overrides, "changed": changed}


def _recipe_of(out: Path, recipe: str | None, saved: Mapping[str, Any]) -> str:
    """Return the name of a run's recipe. Raises UserError if the run has another one, or if none is known."""
    if recipe is None and "recipe" not in saved:
        raise UserError(f"{out}: the run has not saved its command; give the whole command with --out {out} --resume")
    if recipe is not None and saved.get("recipe", recipe) != recipe:
        raise UserError(f"{out} contains a run of the recipe {saved['recipe']}, not of {recipe}")
    return recipe or str(saved["recipe"])


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
