"""Directory of a training run: its status, its lock, and the command that resumes it. Does not import torch.

state/run.json         recipe and settings of the run, with the description of its data; --resume reads them
state/command.json     command that resumes a run that has no run.json
state/model            model directory with the initial weights. While the run is unfinished, its model is loaded from
                       here, with the weights of a checkpoint (`checkpoints.read_unfinished`)
state/checkpoint-*     see `checkpoints.py`
state/finished.json    summary of a finished run; its model is saved in the run directory itself
state/lock             file that the training process keeps locked; it contains the process id
kept/epoch-N           model after N epochs, if `training.keep_every` is set
kept/step-N            model after N steps, if `training.keep_steps` is set
"""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
import shlex
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from manyheads.errors import UserError
from manyheads.files import LEFTOVER, JsonObject, read_json
from manyheads.versions import EarlierVersion, upgrade

if TYPE_CHECKING:
    from manyheads.training.state import Counters

logger = logging.getLogger(__name__)

RUN, COMMAND, FINISHED, LOCK, KEPT, MODEL = "run.json", "command.json", "finished.json", "lock", "kept", "model"
TRAIN = "manyheads train"  # command that trains the recipes of this package
CONTINUE_HINT = "delete the file: --resume continues from the last checkpoint"

_lock_owners: dict[Path, int] = {}  # id of the thread that owns each lock of this process


def run_status(out: Path) -> Literal["none", "unfinished", "finished", "foreign"]:
    """Return the status of the training run in the directory `out`.

    The status is "none" if the directory contains no run, and "foreign" if it contains other files.
    """
    state = out / "state"
    if (state / FINISHED).exists():
        return "finished"
    if state.is_dir():
        names = [path.name for path in state.iterdir()]
        if any(name.startswith("checkpoint-") and name.endswith(".json") for name in names):
            return "unfinished"
        if (out / "result.json").exists():  # The run is finished; its recipe has no training steps.
            return "finished"
        # Files with these names belong to a run that has started, but has not yet written a complete checkpoint.
        prefixes = (".", COMMAND, "checkpoint-", "weights-")
        is_run = all(name in ("tokens", "images", LOCK, RUN, MODEL) or name.startswith(prefixes) for name in names)
        return "none" if is_run else "foreign"
    # A directory that contains only directories of other runs counts as empty: runs/translation may already contain
    # runs/translation/multi30k.
    if out.is_dir():
        return "none" if all(map(_holds_runs, out.iterdir())) else "foreign"
    return "foreign" if out.exists() else "none"


def _holds_runs(folder: Path) -> bool:
    return any((*folder.glob("state"), *folder.glob("*/state")))


def describe_unfinished(directory: Path) -> str | None:
    """Return a message such as `unfinished at step 16: resume with: COMMAND`; None for a finished run."""
    status = run_status(directory)
    if status == "none" and (directory / "state" / LOCK).exists():
        return "this run has no checkpoint yet; if it was stopped, start it again"
    if status != "unfinished":
        return None
    step = max(int(path.stem.removeprefix("checkpoint-")) for path in (directory / "state").glob("checkpoint-*.json"))
    return f"unfinished at step {step:,}: resume with: {resume_command(directory)}"


def resume_command(out: Path) -> str:
    """Return the command that resumes the run in `out`, or the run that it is a part of."""
    saved = saved_run(out)
    if "recipe" in saved:
        return f"{saved.get('program', TRAIN)} --resume {shlex.quote(str(out))}"
    file = out / "state" / COMMAND
    if not file.exists():
        raise EarlierVersion(out, [f"state/{COMMAND}"])
    return str(read_json(file, CONTINUE_HINT))


def saved_run(out: Path) -> JsonObject:
    """Return the content of state/run.json; an empty dictionary for a directory without this file."""
    file = out / "state" / RUN
    content = read_json(file, "start again in another directory (--out)") if file.is_file() else {}
    if not isinstance(content, dict):
        raise UserError(f"{file}: expected a JSON object, found {type(content).__name__}")
    return upgrade(content)


def run_record(model: Path) -> Any:
    """Return the record of a run: the content of result.json, or of state/run.json if the run is unfinished."""
    path = model / "result.json"
    return upgrade(read_json(path, "delete the file")) if path.is_file() else saved_run(model).get("record", {})


@contextmanager
def locked_run_directory(out: Path, *, resume: bool) -> Iterator[None]:
    """Create the run directory `out`, and keep it locked while the `with` block runs.

    If the block raises an error before the first checkpoint, the new directory is removed. Raises UserError if `out`
    cannot be used.
    """
    status = run_status(out)
    if status == "foreign":
        raise UserError(
            f"{out} is {'not empty and contains no run' if out.is_dir() else 'a file'}; choose another directory "
            "(--out)"
        )
    created = [path for path in (out / "state", out, *out.parents) if not path.exists()]
    try:
        (out / "state").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{out}: cannot create the run directory: {error.strerror}") from error
    with locked(out):
        # The message shows the command that the run has saved: the settings of the current command may be different.
        if not resume and status == "unfinished":
            again = "replace it with overwrite=True in Python, or resume it with"
            raise UserError(f"{out} contains an unfinished run; {again}: {resume_command(out)}")
        if not resume and status == "finished":
            hint = "choose another directory (--out), or replace it with overwrite=True in Python"
            if not (out / "result.json").exists():
                hint = f"its evaluation was interrupted: use --resume to evaluate it, or {hint}"
            raise UserError(f"{out} contains a finished run; {hint}")
        try:
            yield
        except Exception:  # Any error before the first checkpoint leaves nothing to resume.
            if created and run_status(out) == "none":
                shutil.rmtree(out / "state", ignore_errors=True)
                for folder in created[1:]:
                    with suppress(OSError):  # A directory that contains other files remains.
                        folder.rmdir()
            raise


@contextmanager
def replaced_run(out: Path) -> Iterator[None]:
    """Move the run in `out` away, so that the `with` block can train there, and delete it afterwards.

    If the block ends before the first checkpoint of the new run, the old run is put back. Runs in subdirectories of
    `out` are not moved. If the process is killed, the old run remains next to `out`, in a folder that
    begins with `LEFTOVER`. Raises UserError if another process trains in `out`.
    """
    if run_status(out) not in ("unfinished", "finished"):
        yield
        return
    folder = out.resolve()
    old, failed = (folder.with_name(f"{LEFTOVER}{secrets.token_hex(4)}-{folder.name}") for _ in range(2))

    def move(source: Path, target: Path) -> None:
        target.mkdir(exist_ok=True)
        for path in [path for path in source.iterdir() if not _holds_runs(path)]:
            path.rename(target / path.name)

    with locked(out):
        move(folder, old)
    try:
        yield
    finally:
        if run_status(out) == "none":
            move(folder, failed)
            move(old, folder)
            shutil.rmtree(failed)
        shutil.rmtree(old)


@contextmanager
def locked(out: Path) -> Iterator[None]:
    """Lock a run directory while the `with` block runs. Raises UserError if another process trains there.

    The operating system releases the lock when the owning process ends, even after kill -9, so a lock is never left
    over. A thread that owns the lock of a directory may lock the directory again.
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
        except OSError as error:  # Some network file systems do not support locks.
            logger.warning(
                f"{out}: cannot lock the directory ({error.strerror}): do not train there with two processes"
            )
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        _lock_owners[path] = threading.get_ident()
        try:
            yield
        finally:
            del _lock_owners[path]


def remove_leftovers(out: Path) -> None:
    """Remove incomplete files that a killed process left behind. Call this only while the run directory is locked."""
    for folder in (out, out / "state", out / "state" / "tokens", *(out / KEPT).glob("*")):
        for path in folder.glob(f"{LEFTOVER}*"):
            path.unlink()


def saved_message(model_type: str, out: Path) -> str:
    """Return a message that says where a model is saved and which tools can open it.

    model_type  result of `Objective.save`. If it is empty, the model is not saved
    """
    if not model_type:
        return f"no model directory can represent this model, so none is written in {out}"
    own = model_type.startswith("manyheads-")
    return f"saved in {out} ({'only Manyheads opens it' if own else f'transformers opens it as {model_type}'})"


@dataclass(frozen=True)
class Summary:
    """Summary of a finished run or a stopped session.

    reason   reason for the end, such as the limit that was reached
    metrics  validation metrics of the final weights, as returned by `Objective.validate`
    """

    status: Literal["finished", "stopped"]
    reason: str
    step: int
    epoch: int
    tokens: int  # number of target tokens in all sessions
    seconds: float  # wall time of all sessions in seconds
    weights: str  # description of the saved weights, such as "last"
    metrics: dict[str, float]
    skipped: int = 0  # number of skipped steps, whose loss or gradient was not finite

    @classmethod
    def of(
        cls, counters: Counters, status: Literal["finished", "stopped"], reason: str, weights: str,
        metrics: dict[str, float],
    ) -> Self:  # fmt: skip
        """Return the summary of a run at the step of its counters."""
        c = counters
        return cls(status, reason, c.step, c.epoch, c.tokens, c.seconds, weights, metrics, c.skipped)

    @classmethod
    def read(cls, path: Path) -> Self:
        values = read_json(path, CONTINUE_HINT)
        if not isinstance(values, dict) or {"skipped", *values} != {f.name for f in fields(cls)}:
            raise UserError(f"{path}: not a valid summary of a run; {CONTINUE_HINT}")
        return cls(**values)
