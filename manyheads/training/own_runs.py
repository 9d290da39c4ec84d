"""List of the runs that this user has trained on this machine.

The file `result.json` of a run names the data files of the run. Commands open these files without the option --trust
only if the user trained the run, because a run from another person could name any file. To recognize its own runs,
training stores a digest of the data record in the user's state directory ($XDG_STATE_HOME, or ~/.local/state). A run
directory that was copied from elsewhere cannot add such a digest. The list keeps at least the last `MAX_RUNS` runs;
older runs need --trust again.
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

_added: set[str] = set()  # digests of the runs trained by this process, in case the file cannot be written


def add(data: Mapping[str, Any]) -> None:
    """Add a run to the list of runs that this user has trained. The run is identified by a digest of its data record.

    Logs a warning if the list cannot be written to disk.
    """
    digest = _digest(data)
    if is_own(data):
        return
    _added.add(digest)
    try:
        file = _file()
        file.parent.mkdir(parents=True, exist_ok=True)
        _append(file, digest)
    except (OSError, RuntimeError) as error:  # RuntimeError is raised if the user has no home directory
        logger.warning(
            f"cannot register the run as your own ({error}): to evaluate it later, add --trust or --data PATH"
        )


def is_own(data: Mapping[str, Any]) -> bool:
    digest = _digest(data)
    if digest in _added:
        return True
    try:
        return digest in _file().read_text(encoding="ascii", errors="replace").split()
    except (OSError, RuntimeError):
        return False


def _append(file: Path, digest: str) -> None:
    """Append a digest to the file. If the file then has twice `MAX_RUNS` lines, keep only the last `MAX_RUNS`."""
    with file.open("a+", encoding="ascii", errors="replace") as lines:
        with suppress(OSError):  # without file locks, a digest may be lost if two runs end at the same time
            fcntl.flock(lines, fcntl.LOCK_EX)
        lines.seek(0)
        digests = lines.read().split()
        if len(digests) >= 2 * MAX_RUNS:
            lines.truncate(0)
            lines.write("".join(f"{line}\n" for line in digests[1 - MAX_RUNS :]))
        lines.write(digest + "\n")


def _file() -> Path:
    configured = os.environ.get("XDG_STATE_HOME", "")
    state = Path(configured) if os.path.isabs(configured) else Path.home() / ".local" / "state"
    return state / "manyheads" / "runs"


def _digest(data: Mapping[str, Any]) -> str:
    # JSON turns numeric keys into strings, which are sorted in another order than numbers. So convert the keys before
    # sorting.
    normalized = json.loads(json.dumps(data))
    return hashlib.sha256(json.dumps(normalized, sort_keys=True).encode()).hexdigest()
