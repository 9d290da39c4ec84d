"""Function `manyheads.train`. It applies the user's settings to a recipe, checks the settings and runs the recipe."""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from manyheads.core.config import as_dict
from manyheads.data.readers.memory import IN_MEMORY, split_mapping
from manyheads.data.readers.splits import parts_of, working_directory
from manyheads.data.sources.source import HUB
from manyheads.errors import UserError
from manyheads.files import JsonMapping, JsonObject
from manyheads.runs.options import Run
from manyheads.runs.overrides import Setting, apply, from_file, from_mapping, leaves, with_full_keys
from manyheads.runs.progress import ProgressDisplay, ProgressLines, kept_messages
from manyheads.runs.recipe import Recipe, RunConfig
from manyheads.runs.result import RunResult
from manyheads.runs.resuming import options_to_save, restored, saved_options
from manyheads.runs.run import train_recipe
from manyheads.runs.task import Report
from manyheads.tasks.registry import RECIPES, find, is_for_any_data
from manyheads.tasks.trained_run import TrainedRun
from manyheads.training.config import RESUMABLE
from manyheads.training.distributed import distributed_context, reraise_peer_failure, was_restarted
from manyheads.training.run_directory import replaced_run, resume_command
from manyheads.training.run_log import LogCallback, ProgressCallback

C = TypeVar("C", bound=RunConfig)
MAX_PROCESSES = 1024


def train(
    recipe: str | None = None,
    overrides: Mapping[str, object] | list[Setting] | None = None,
    *,
    train: object = None,
    validation: object = None,
    test: object = None,
    config: str | Path | None = None,
    out: str | Path | None = None,
    init: str | None = None,
    resume: bool | str | Path = False,
    overwrite: bool = False,
    dry_run: bool = False,
    max_minutes: float | None = None,
    precision: str | None = None,
    skip_bad_lines: bool = False,
    compile: bool = False,
    processes: int = 1,
    progress: ProgressCallback | bool | None = True,
    callbacks: Sequence[LogCallback] = (),
    recipes: Mapping[str, Recipe] = RECIPES,
    **settings: object,
) -> TrainedRun:
    """Run a recipe and return the run: the content of `result.json`, with the model, its metrics and its training log.

    recipe      name of the recipe, as listed by `manyheads recipes`
    overrides   settings by dotted key, such as {"training.steps": 100}; they override the settings in the YAML file
                `config`. An unambiguous last part of a key, such as "steps", is enough
    train, validation, test
                paths, or data in memory (a list of dictionaries or tuples, a frame of pandas or Polars, a
                `datasets.Dataset`, or a PyTorch dataset of images). `train` may be a mapping from names of splits, such
                as "train" and "dev", to their data. Training data are given as `train` or as the setting `data`, not
                both
    out         run directory. By default, it is `runs/RECIPE`
    init        model to start from
    resume      directory of the run to resume, or True for the run in `out`. The run keeps its recipe and settings; its
                limits may change, even if it is finished
    overwrite   if True, replace a run in `out`. The old run, with all files in its directory, is deleted at the end of
                the new run. If the new run fails before its first checkpoint, the old run remains
    processes   number of processes that the user's command started
    progress    True: show a bar with the remaining time on a terminal or in a notebook. If stderr is a file, it gets a
                line every 30 seconds. None: no bar. False: log only errors. `print`: print a line every 30 seconds. Any
                other function receives the progress every half second
    callbacks   functions that receive each entry of the training log. A function that returns False stops the run
    recipes     recipes by name. By default, the recipes of this package
    settings    further settings by the last part of their key, such as steps=100

    The run reports through `logging` (logger "manyheads", mostly level INFO), and the returned run keeps the messages.
    Under `torchrun`, every process calls this function with the same arguments, and all of them get the report. Raises
    UserError on any error that the user can fix. A dry run, and a recipe that trains several models, return another
    report.

        >>> plan = manyheads.train("translation", steps=100, dry_run=True)
        >>> plan["parameters"]
        1250304
    """
    if not isinstance(resume, bool):
        if out is not None and Path(out) != Path(resume):
            raise UserError(f"resume={str(resume)!r} and out={str(out)!r}: expected one of them")
        out, resume = resume, True
    if overwrite and resume:
        raise UserError("overwrite and resume: expected one of them")
    _check_arguments(out, max_minutes, processes, callbacks)
    own = [*(overrides if isinstance(overrides, list) else from_mapping(overrides or {})), *from_mapping(settings)]
    display = ProgressDisplay() if progress is True else None
    report_to = ProgressLines(print) if progress is print else progress if callable(progress) else display
    with kept_messages(quiet=progress is False) as messages:
        paths, memory = _data({"train": train, "validation": validation, "test": test}, own)
        if recipe is None and (out is None or not resume):
            raise UserError("expected a recipe (`manyheads recipes` lists them), or --resume RUN to resume a run")
        request = Run(
            recipe or "", Path(f"runs/{recipe}" if out is None else out), memory=memory, init=init, resume=resume,
            dry_run=dry_run, max_minutes=max_minutes, precision=precision, skip_bad_lines=skip_bad_lines,
            compile=compile, processes=processes, progress=report_to, callbacks=callbacks,
        )  # fmt: skip
        given = [*(from_file(config) if config else []), *own, *from_mapping(paths)]
        selected, resolved, run = _resolved(request, given, recipes)
        # A process that torchrun has restarted resumes the new run.
        replaces = overwrite and not (run.resume or dry_run) and distributed_context().first
        replaced = replaced_run(run.out) if replaces else nullcontext()
        with reraise_peer_failure(), replaced, display or nullcontext():
            report: Any = _report(selected, resolved, run)
    # Only a recipe that trains a single model returns a `RunResult`; return the reports of other recipes unchanged.
    return TrainedRun(report, run.out, messages) if report is None or isinstance(report, RunResult) else report


def _resolved(request: Run, settings: list[Setting], recipes: Mapping[str, Recipe]) -> tuple[Recipe, RunConfig, Run]:
    """Return the recipe of a run, its configuration with all settings, and the options of the run.

    request   options of this call of `train`. Its recipe is an empty name if the user has given none
    settings  settings of this call. A later setting takes precedence over an earlier one

    A resumed run keeps its recipe, its settings and its options, except for those that the call changes.
    """
    out = request.out
    saved = saved_options(out) if request.resume else {}
    name = _recipe_of(out, request.recipe, saved)
    if saved and name not in recipes:
        raise UserError(f"{out}: resume this run with: {resume_command(out)}")
    recipe = find(name, recipes)
    if request.memory and "data" not in vars(recipe.config):
        raise UserError(f"{name} generates its own data: leave out {', '.join(request.memory)}")
    options: JsonObject = {
        "init": request.init or saved.get("init"), "precision": request.precision or saved.get("precision"),
        "skip_bad_lines": request.skip_bad_lines or saved.get("skip_bad_lines", False),
        "compile": request.compile or saved.get("compile", False), "processes": request.processes,
        "program": recipe.program,
    }  # fmt: skip
    config, given = _configured(recipe, settings, options, saved, out)
    run = replace(
        request, recipe=name, resume=request.resume or was_restarted(),
        saved=options_to_save(
            name, as_dict(config), given=given["given"], overrides=given["overrides"],
            directory=working_directory(out), **options,
        ),
        own_data="data" in given["given"] and ("data" not in recipe.requires or is_for_any_data(name)),
        **given, **options,
    )  # fmt: skip
    _check(recipe, config, run)
    return recipe, config, run


def _report(recipe: Recipe, config: RunConfig, run: Run) -> Report:
    """Carry out a run, or a dry run, and return its report.

    Several ranks train a model together. A recipe that trains nothing runs on rank 0 only.
    """
    context = distributed_context()
    if run.dry_run:
        return context.broadcast(lambda: _dry_run(recipe, config, run))
    if not recipe.spreads:
        return context.broadcast(lambda: train_recipe(recipe, config, run))
    return train_recipe(recipe, config, run)


def _dry_run(recipe: Recipe, config: RunConfig, run: Run) -> Report:
    """Return the report of a dry run, which reads the data unless they are not given or would have to be downloaded."""
    given = vars(config)
    needed = [given[name] for name in recipe.requires] + [run.init] * (recipe.init == "must")
    reads = None not in needed and not str(given.get("data", "")).startswith(HUB)
    with TemporaryDirectory() as scratch:  # for the files of a run, such as tokenized texts
        return train_recipe(recipe, config, replace(run, out=Path(scratch, "run"), reads=reads))


def _check_arguments(
    out: str | Path | None, max_minutes: float | None, processes: int, callbacks: Sequence[LogCallback]
) -> None:
    """Raise UserError for values that the command line rejects, and for callbacks that cannot be called."""
    if out is not None and not str(out):
        raise UserError("out is empty: give a directory, or leave it out for runs/RECIPE")
    if max_minutes is not None and not (isinstance(max_minutes, int | float) and 0 <= max_minutes < math.inf):
        raise UserError(f"max_minutes: expected 0 or a positive number, found {max_minutes!r}")
    if not isinstance(processes, int) or not 1 <= processes <= MAX_PROCESSES:
        raise UserError(f"processes: expected a whole number from 1 to {MAX_PROCESSES}, found {processes!r}")
    found = list(callbacks) if isinstance(callbacks, Sequence) else [callbacks]
    if not isinstance(callbacks, Sequence) or not all(map(callable, found)):
        wrong = next((item for item in found if not callable(item)), found[0])
        raise UserError(f"callbacks: expected a list of functions, found {wrong!r}; write callbacks=[FUNCTION]")


def _data(given: Mapping[str, object], own: Sequence[Setting]) -> tuple[dict[str, str], dict[str, object]]:
    """Return the settings for data in files, and the data in memory by split.

    given  arguments train, validation and test of `train`
    own    settings of this call

    Raises UserError if the data of a split are given twice.
    """
    splits = split_mapping(given["train"]) if isinstance(given["train"], Mapping) else {"train": given["train"]}
    for name, key in (("train", "data"), ("validation", "validation"), ("test", "test")):
        arguments = [splits.get(name), given[name] if name != "train" else None]
        if sum(data is not None for data in arguments) == 2:
            raise UserError(f"{name} is given twice, as {name}= and in the mapping train=: leave one out")
        if any(data is not None for data in arguments) and any(s.key == key and s.value is not None for s in own):
            raise UserError(f"give train or data, not both: {key} is also among the settings" if name == "train" else
                            f"{name} is given twice, as {name}= and among the settings: leave one out")  # fmt: skip
    given = {name: data for name in given if (data := splits.get(name, given[name])) is not None}
    paths = {name: str(data) for name, data in given.items() if isinstance(data, str | Path)}
    named = {s.key: s.value for s in own if s.key in ("data", "validation", "test") and isinstance(s.value, str)}
    for name, path in {**named, **paths}.items():
        _check_path(name, path)
    memory = {name: data for name, data in given.items() if name not in paths}
    if memory and "train" not in memory:
        raise UserError(f"{', '.join(memory)}: in memory, but the training data are not; give them as train=")
    train = {"data": IN_MEMORY} if memory else {"data": paths.pop("train")} if "train" in paths else {}
    return {**paths, **train}, memory


def _check_path(name: str, path: str) -> None:
    """Raise UserError if a text cannot be a path, such as a text that was meant as the data themselves."""
    try:
        for part in parts_of(path):
            os.stat(part)
    except FileNotFoundError:
        return  # A missing file is reported by its reader.
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno != errno.ENAMETOOLONG:
            return
        hint = f"give a file or directory; or in Python, {name.replace('data', 'train')}=[TEXT, ...]"
        raise UserError(f"{name}: expected a path, found a text of {len(path):,} characters; {hint}") from None


def _configured(
    recipe: Recipe, settings: list[Setting], options: JsonMapping, saved: JsonMapping, out: Path
) -> tuple[RunConfig, JsonObject]:
    """Return the configuration of a run, and the fields of `Run` with the user's settings of all sessions."""
    start: RunConfig = recipe.starting_config(options["init"])
    settings = with_full_keys(start, settings)
    base = restored(start, saved["settings"], out) if saved else start
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


def _recipe_of(out: Path, recipe: str, saved: JsonMapping) -> str:
    """Return the name of a run's recipe. Raises UserError if the run has another one, or if none is known."""
    if not recipe and "recipe" not in saved:
        raise UserError(f"{out}: the run has not saved its command; give the whole command with --out {out} --resume")
    if recipe and saved.get("recipe", recipe) != recipe:
        raise UserError(f"{out} contains a run of the recipe {saved['recipe']}, not of {recipe}")
    return recipe or str(saved["recipe"])


def _one_budget(config: C, keys: set[str]) -> C:
    """Return the config with only those limits on the training duration that the user set.

    For example, if the user sets only the number of steps, the recipe's number of epochs is removed.
    """
    training, alone = config.training, {"training.steps", "training.epochs"} & keys
    if alone == {"training.steps"} and training.steps is not None:
        return replace(config, training=replace(training, epochs=None))
    if alone == {"training.epochs"} and training.epochs is not None:
        return replace(config, training=replace(training, steps=None))
    return config


def _check(recipe: Recipe, config: RunConfig, run: Run) -> None:
    """Raise UserError if a required setting is missing, or if an option has no effect for the recipe."""
    if run.init is not None and recipe.init == "never":
        raise UserError(f"{run.recipe} cannot start from another model: leave --init out")
    if not run.dry_run:
        for name, value in recipe.requires.items():
            if vars(config)[name] is None:
                raise UserError(f"{run.recipe} requires the setting {name}: {name}={value}")
        if recipe.init == "must" and run.init is None:
            raise UserError(f"{run.recipe} fine-tunes a model: give the model to start from with --init MODEL")
    if vars(config).get("data") is not None:
        idle = ("locale", "size")
        run.refuse(idle, "no effect with data, only with the built-in corpus: leave it out", changed_only=True)


def _within(key: str, group: str) -> bool:
    return key == group or key.startswith(f"{group}.")
