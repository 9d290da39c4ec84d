"""Which runs were trained here, by this user: what their records name is opened again without a question.

`result.json` names files, and a run may come from anywhere. So a training leaves a digest of its record's data in the
user's own folder of state ($XDG_STATE_HOME, or ~/.local/state), where no copied directory can bring one.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_here: set[str] = set()  # what this process has added, also where no file can be written


def add(data: Mapping[str, Any]) -> None:
    """From now on a record with these `data` is the user's own. Warns where that cannot be kept."""
    digest = _digest(data)
    if is_own(data):
        return
    _here.add(digest)
    try:
        file = _file()
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a", encoding="ascii") as lines:
            lines.write(digest + "\n")  # one write of one line: several runs may end at once
    except (OSError, RuntimeError) as error:  # RuntimeError: a user without a home
        print(f"warning: the run is not noted as your own ({error}): to evaluate it, add --trust or --data PATH",
              file=sys.stderr)  # fmt: skip


def is_own(data: Mapping[str, Any]) -> bool:
    digest = _digest(data)
    if digest in _here:
        return True
    try:
        return digest in _file().read_text(encoding="ascii", errors="replace").split()
    except (OSError, RuntimeError):
        return False


def _file() -> Path:
    given = os.environ.get("XDG_STATE_HOME", "")
    state = Path(given) if os.path.isabs(given) else Path.home() / ".local" / "state"
    return state / "manyheads" / "runs"


def _digest(data: Mapping[str, Any]) -> str:
    as_written = json.loads(json.dumps(data))  # keys are texts there, and sorted as such
    return hashlib.sha256(json.dumps(as_written, sort_keys=True).encode()).hexdigest()
