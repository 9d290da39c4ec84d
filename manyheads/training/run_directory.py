"""A run's directory: what it holds, whose it is, and who trains in it now. Needs no torch.

state/command.json     the command that resumes the run
state/checkpoint-*     see `checkpoints.py`
state/finished.json    how it ended; the model lies beside `state/`
state/lock             held by the process that trains there, with its number
kept/epoch-N           the model after so many epochs, where `training.keep_every` asks for it
"""

import fcntl
import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from manyheads.errors import UserError
from manyheads.files import LEFTOVER, read_json

logger = logging.getLogger(__name__)

COMMAND, FINISHED, LOCK, KEPT = "command.json", "finished.json", "lock", "kept"
GO_ON = "delete it: --resume goes on from the last checkpoint"

_lock_owners: dict[Path, int] = {}  # of the locks that this process holds, the thread


def run_status(out: Path) -> Literal["none", "unfinished", "finished", "foreign"]:
    """What `out` holds: nothing, a run of ours, or something else."""
    state = out / "state"
    if (state / FINISHED).exists():
        return "finished"
    if state.is_dir():
        names = [path.name for path in state.iterdir()]
        if any(name.startswith("checkpoint-") and name.endswith(".json") for name in names):
            return "unfinished"
        if (out / "result.json").exists():  # of a run that trains nothing
            return "finished"
        # claimed, but nothing to resume before the first checkpoint is whole
        begun = (".", COMMAND, "checkpoint-", "weights-")
        ours = all(name in ("tokens", "images", LOCK) or name.startswith(begun) for name in names)
        return "none" if ours else "foreign"
    if out.is_dir():  # runs/translation may hold runs/translation/multi30k, and runs/translation/ablate/base
        runs = (any((*inside.glob("state"), *inside.glob("*/state"))) for inside in out.iterdir())
        return "none" if all(runs) else "foreign"
    return "foreign" if out.exists() else "none"


def unfinished(directory: Path) -> str | None:
    """`unfinished at step 16: resume with: COMMAND`, of a directory that holds a run but no model yet; else None."""
    status = run_status(directory)
    if status == "none" and (directory / "state" / LOCK).exists():
        return "a run was begun there, which has no checkpoint yet; if it was stopped, train it again"
    if status != "unfinished":
        return None
    step = max(int(path.stem.removeprefix("checkpoint-")) for path in (directory / "state").glob("checkpoint-*.json"))
    return f"unfinished at step {step:,}: resume with: {resume_command(directory)}"


def resume_command(out: Path) -> str:
    """Of the run that `out` holds."""
    kept = out / "state" / COMMAND  # older runs have none
    return read_json(kept, GO_ON) if kept.exists() else f"the same command with --out {out} --resume"


@contextmanager
def locked_run_directory(out: Path, *, resume: bool) -> Iterator[None]:
    """Make `out` the directory of this run, which nobody else uses meanwhile; a UserError says why it cannot be."""
    status = run_status(out)
    if status == "foreign":
        raise UserError(
            f"{out} is {'not empty and holds no run' if out.is_dir() else 'a file'}; choose another directory (--out)"
        )
    try:
        (out / "state").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{out}: cannot create the run directory: {error.strerror}") from error
    with locked(out):
        if not resume and status == "unfinished":  # its own command may have other settings than this one
            raise UserError(f"{out} holds an unfinished run; resume it with: {resume_command(out)}")
        if not resume and status == "finished":
            hint = "choose another directory (--out)"
            if not (out / "result.json").exists():
                hint = f"--resume scores it, which was cut short; or {hint}"
            raise UserError(f"{out} holds a finished run; {hint}")
        yield


@contextmanager
def locked(out: Path) -> Iterator[None]:
    """Nobody else trains in a run's directory meanwhile; a second process is refused with a UserError.

    The lock dies with the process that holds it, even by kill -9: none is ever stale. Within a lock, the same thread
    may ask for it again.
    """
    path = (out / "state" / LOCK).resolve()
    if _lock_owners.get(path) == threading.get_ident():
        yield
        return
    with path.open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise UserError(
                f"{out} is in use by the running process {file.read().strip()}: wait for it, or choose another "
                "directory (--out)"
            ) from None
        except OSError as error:  # some network file systems have no locks
            logger.warning(f"{out}: cannot be locked ({error.strerror}): train there once at a time")
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        _lock_owners[path] = threading.get_ident()
        try:
            yield
        finally:
            del _lock_owners[path]


def remove_leftovers(out: Path) -> None:
    """Remove the incomplete files that a killed process has left; only within the lock."""
    for folder in (out, out / "state", out / "state" / "tokens", *(out / KEPT).glob("*")):
        for path in folder.glob(f"{LEFTOVER}*"):
            path.unlink()
