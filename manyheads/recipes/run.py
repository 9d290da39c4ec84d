"""How a recipe is run: where to, from what, for how long. What is trained is in the recipe's config."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Run:
    """The options of `manyheads train` that every recipe understands.

    precision    "float32", "bf16", or None: what the recipe prefers
    max_minutes  stop after so long, resumable; never shapes a schedule
    overrides    the settings that differ from the recipe's, by dotted key, as `result.json` keeps them
    """

    recipe: str
    out: Path
    init: str | None = None
    resume: bool = False
    dry_run: bool = False
    max_minutes: float | None = None
    precision: str | None = None
    skip_bad_lines: bool = False
    compile: bool = False
    overrides: dict[str, Any] = field(default_factory=dict)

    @property
    def resume_command(self) -> str:
        """The command that goes on with this run."""
        words = ["manyheads", "train", self.recipe, *(f"{key}={_word(value)}" for key, value in self.overrides.items())]
        for option, value in (("--out", self.out), ("--init", self.init), ("--precision", self.precision)):
            words += [option, str(value)] if value is not None else []
        for option, given in (("--skip-bad-lines", self.skip_bad_lines), ("--compile", self.compile)):
            words += [option] if given else []
        return shlex.join([*words, "--resume"])


def _word(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ",".join(_word(item) for item in value)
    return str(value) if isinstance(value, str) else json.dumps(value)
