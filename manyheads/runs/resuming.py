"""Recipe, settings and options of an existing run, so that `manyheads train --resume RUN` needs nothing else."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

from manyheads.core.config import with_defaults
from manyheads.data.readers.memory import IN_MEMORY
from manyheads.errors import UserError
from manyheads.files import read_json
from manyheads.runs.overrides import Setting, rebuild
from manyheads.training.budgets import spent
from manyheads.training.run_directory import COMMAND, resume_command, saved_run
from manyheads.training.state import Counters

Config = TypeVar("Config")

PATHS = ("data", "validation", "test")


def saved_options(out: Path) -> dict[str, Any]:
    """Return the recipe and the options of the run in `out`, as `options_to_save` returned them.

    For a run of an older version, the entry `arguments` holds its settings as `key=value`, without those of the recipe.
    The result is empty if the run has not saved its options. Raises UserError if `out` contains no run.
    """
    if not out.is_dir():
        raise UserError(f"{out}: no such directory, so there is no run to resume")
    if not any((*out.glob("state"), *out.glob("*/state"))):
        raise UserError(f"{out} contains no run to resume; to start one, leave out --resume")
    content = saved_run(out)
    if "recipe" in content:
        if not all(isinstance(content.get(key), dict) for key in ("settings", "given", "overrides")):
            raise UserError(f"{out}: state/run.json is damaged; give the whole command with --out {out} --resume")
        return {**content, "settings": _from_here(content)}
    if content:
        raise UserError(f"{out} is a part of a run, which is resumed as a whole: {resume_command(out)}")
    command = out / "state" / COMMAND
    return _of_command(read_json(command, "give the whole command with --resume")) if command.is_file() else {}


def options_to_save(recipe: str, settings: Mapping[str, Any], **options: Any) -> dict[str, Any]:
    """Return the entries of state/run.json from which a run can be resumed.

    settings  all settings, as `as_dict` returns them
    options   further options of `manyheads train`, by name
    """
    return {"recipe": recipe, "settings": dict(settings), "directory": os.getcwd(), **options}


def _from_here(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings, with data paths that are valid in the current directory."""
    settings, started = dict(content["settings"]), content["directory"]
    if started != os.getcwd():
        for name in PATHS:
            if (path := settings.get(name)) and path != IN_MEMORY and not path.startswith("hub:"):
                settings[name] = ",".join(str(Path(started, part.strip())) for part in path.split(","))
    return settings


def _of_command(command: str) -> dict[str, Any]:
    parser = argparse.ArgumentParser(exit_on_error=False, add_help=False)
    parser.add_argument("words", nargs="*")
    for option in ("--out", "--init", "--precision", "--processes"):
        parser.add_argument(option)
    for option in ("--skip-bad-lines", "--compile", "--resume"):
        parser.add_argument(option, action="store_true")
    words = shlex.split(command)[2:] if command.startswith("manyheads train ") else []
    options = vars(parser.parse_known_args(words)[0])
    recipe, *arguments = options.pop("words") or [None]
    return {"recipe": recipe, "arguments": arguments, **options} if recipe else {}


def last_checkpoint(out: Path) -> dict[str, Any]:
    """Return the JSON content of the last readable checkpoint of a run; empty if there is none.

    A resumed run keeps its settings, and divides the data into the same splits as before. The training loop checks the
    checkpoint, and reports errors.
    """
    for path in sorted((out / "state").glob("checkpoint-*.json"), reverse=True):
        try:
            content = read_json(path, "")["content"]
            prints = {str(name): str(digits) for name, digits in content["settings"]["fingerprints"].items()}
            settings = {**content["settings"], "fingerprints": prints}
            done = spent(Counters(**content["counters"]), content["batches"])
            return {
                "step": int(content["step"]), "spent": done, "config": dict(content["config"]), "settings": settings,
            }  # fmt: skip
        except (OSError, ArithmeticError, ValueError, KeyError, TypeError, AttributeError):
            continue
    return {}


def restored(config: Config, saved: Mapping[str, Any]) -> Config:
    """Return a copy of `config` with the values of a saved configuration, as `as_dict` returned it.

    A setting that did not exist when the configuration was saved gets the default of its class.
    """
    return rebuild(config, "", list(_values(config, with_defaults(config, saved), "")))


def _values(config: Any, saved: Mapping[str, Any], prefix: str) -> Iterator[Setting]:
    for f in fields(config):
        key, value = f"{prefix}{f.name}", getattr(config, f.name)
        if f.name in saved and is_dataclass(value):
            yield from _values(value, saved[f.name], f"{key}.")
        elif f.name in saved:
            yield Setting(key, saved[f.name])
