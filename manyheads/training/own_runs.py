"""The runs that this user has trained on this machine. Verbs open the files that their records name without --trust.

`result.json` names files, and a run may come from anywhere. So a training leaves a digest of its record's data in the
user's own folder of state ($XDG_STATE_HOME, or ~/.local/state), where no copied directory can bring one. The file keeps
the digests of the last runs, at least `MAX_RUNS`; older runs need --trust again.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

MAX_RUNS = 2000

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
        _append(file, digest)
    except (OSError, RuntimeError) as error:  # RuntimeError: a user without a home
        logger.warning(f"the run is not noted as your own ({error}): to evaluate it, add --trust or --data PATH")


def is_own(data: Mapping[str, Any]) -> bool:
    digest = _digest(data)
    if digest in _here:
        return True
    try:
        return digest in _file().read_text(encoding="ascii", errors="replace").split()
    except (OSError, RuntimeError):
        return False


def _append(file: Path, digest: str) -> None:
    """Add a line. Keep the last `MAX_RUNS` lines once there are twice as many."""
    with file.open("a+", encoding="ascii", errors="replace") as lines:
        with suppress(OSError):  # a file system without locks: a line may be lost if two runs end at once
            fcntl.flock(lines, fcntl.LOCK_EX)
        lines.seek(0)
        digests = lines.read().split()
        if len(digests) >= 2 * MAX_RUNS:
            lines.truncate(0)
            lines.write("".join(f"{kept}\n" for kept in digests[1 - MAX_RUNS :]))
        lines.write(digest + "\n")


def _file() -> Path:
    given = os.environ.get("XDG_STATE_HOME", "")
    state = Path(given) if os.path.isabs(given) else Path.home() / ".local" / "state"
    return state / "manyheads" / "runs"


def _digest(data: Mapping[str, Any]) -> str:
    as_written = json.loads(json.dumps(data))  # keys are texts there, and sorted as such
    return hashlib.sha256(json.dumps(as_written, sort_keys=True).encode()).hexdigest()
