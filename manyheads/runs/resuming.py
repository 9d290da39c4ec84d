"""Functions that save and read the recipe, settings and options of a run, for `manyheads train --resume RUN`."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TypeVar

from manyheads.core.config import DataclassInstance, is_config, missing_fields, values
from manyheads.data.readers.splits import PATHS, from_here
from manyheads.errors import UserError, shown
from manyheads.files import JsonMapping, JsonObject, read_json
from manyheads.runs.overrides import Setting, rebuild
from manyheads.runs.recipe import RunConfig
from manyheads.training.config import BUDGETS
from manyheads.training.resume import refuse_differences
from manyheads.training.run_directory import RUN, resume_command, run_status, saved_run
from manyheads.training.schedules import refuse_exceeded, spent
from manyheads.training.state import Counters
from manyheads.versions import EarlierVersion, check_complete, upgrade

C = TypeVar("C", bound=DataclassInstance)


def saved_options(out: Path) -> JsonObject:
    """Return the recipe and the options of the run in `out`, as `options_to_save` returned them.

    The result is empty for a run that consists of several runs, and for a run that was killed before it read its data.
    Raises UserError if `out` contains no run.
    """
    if not out.is_dir():
        raise UserError(f"{out}: no such directory, so there is no run to resume")
    if not any((*out.glob("state"), *out.glob("*/state"))):
        raise UserError(f"{out} contains no run to resume; to start one, leave out --resume")
    content = saved_run(out)
    if "recipe" in content:
        check_complete(out, (key for key in ("settings", "given", "overrides", "directory") if key not in content))
        if not all(isinstance(content[key], dict) for key in ("settings", "given", "overrides")):
            raise UserError(f"{out}: state/run.json is damaged; give the whole command with --out {out} --resume")
        return {**content, "settings": _from_here(content, out)}
    if content:
        raise UserError(f"{out} is a part of a run, which is resumed as a whole: {resume_command(out)}")
    if run_status(out) in ("unfinished", "finished") and (out / "state").is_dir():
        raise EarlierVersion(out, [f"state/{RUN}"])
    return {}


def options_to_save(recipe: str, settings: JsonMapping, **options: object) -> JsonObject:
    """Return the content of state/run.json, from which a run can be resumed.

    settings  all settings, as `as_dict` returns them
    options   further options of `manyheads train`, by name
    """
    return {"recipe": recipe, "settings": dict(settings), **options}


def _from_here(content: JsonMapping, out: Path) -> JsonObject:
    """Return the saved settings of a run, with relative data paths changed so that they are valid in this directory."""
    settings = dict(content["settings"])
    return settings | {n: from_here(settings[n], out, content["directory"]) for n in PATHS if settings.get(n)}


def last_checkpoint(out: Path) -> JsonObject:
    """Return the JSON content of the last readable checkpoint of a run; empty if there is none.

    A resumed run keeps its settings, and divides the data into the same splits as before. The training loop checks the
    checkpoint, and reports errors.
    """
    for path in sorted((out / "state").glob("checkpoint-*.json"), reverse=True):
        try:
            content = upgrade(read_json(path, "")["content"])
            prints = {str(name): str(digits) for name, digits in content["settings"]["fingerprints"].items()}
            settings = {**content["settings"], "fingerprints": prints}
            done = spent(Counters(**content["counters"]), content["batches"])
            return {
                "step": int(content["step"]), "spent": done, "config": dict(content["config"]), "settings": settings,
            }  # fmt: skip
        except (OSError, ArithmeticError, ValueError, KeyError, TypeError, AttributeError):
            continue
    return {}


def refuse_changes(
    out: Path, config: RunConfig, settings: JsonMapping, before: JsonMapping, *, given: JsonMapping,
    changed: Collection[str],
) -> None:  # fmt: skip
    """Raise UserError if a resumed run has other settings, or is of an earlier version, before any data are read.

    settings        settings that identify the run (`settings_of`)
    before          JSON content of the run's last checkpoint (`last_checkpoint`)
    given, changed  settings that the user has given, and keys of those that change the saved run (see `Run`)
    """
    training, saved = config.training, before["settings"]
    lacking = (name for name in missing_fields(config, saved) if name.partition(".")[0] in settings)
    check_complete(out, [*missing_fields(training, before["config"]), *lacking])
    limits = {name: values(training)[name] for name in BUDGETS if f"training.{name}" in given}
    limits = {name: limit for name, limit in limits.items() if limit != before["config"][name]}
    refuse_exceeded(out, limits, before["spent"])
    now = json.loads(json.dumps(settings))
    differences = training.resumed(before["config"], changed).differs_from(before["config"])
    differences += [f"{key}: {saved.get(key)!r} -> {value!r}" for key, value in now.items() if saved.get(key) != value]
    refuse_differences(out, differences)


def refuse_other_data(out: Path, description: JsonMapping, before: JsonMapping) -> None:
    """Raise UserError if the data of a resumed run differ from the data that it was started with.

    description  description of the data that were read now (`Source.describe`)
    before       last checkpoint of the resumed run; empty for a new run
    """
    if not before:
        return
    saved, now = before["settings"]["fingerprints"], description["fingerprints"]
    if changed := [split for split, digits in saved.items() if now.get(split) != digits]:
        keys = ({"train": "data"}.get(split, split) for split in changed)
        paths = (description.get(key) or description.get("data") for key in keys)
        places = dict.fromkeys(path or f"the {split} data" for path, split in zip(paths, changed, strict=True))
        raise UserError(
            f"{out}: the data has changed since the run was started: {shown(places)}; resume it with the same data"
        )


def restored(config: C, saved: JsonMapping, out: Path) -> C:
    """Return a copy of `config` with the values of the configuration that the run in `out` saved (`as_dict`)."""
    check_complete(out, missing_fields(config, saved))
    return rebuild(config, "", list(_values(config, saved, "")))


def _values(config: DataclassInstance, saved: JsonMapping, prefix: str) -> Iterator[Setting]:
    for name, value in values(config).items():
        if is_config(value):
            yield from _values(value, saved[name], f"{prefix}{name}.")
        else:
            yield Setting(f"{prefix}{name}", saved[name])
