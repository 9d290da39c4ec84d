"""Start of a training session at step 0 or from a checkpoint. If the run is already finished, nothing is trained."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path

from manyheads.core.config import missing_fields
from manyheads.errors import UserError
from manyheads.files import JsonMapping, JsonObject, write_json
from manyheads.training.run_directory import COMMAND, FINISHED, MODEL, RUN, Summary, resume_command
from manyheads.training.schedules import steps_per_epoch, warmup_warning
from manyheads.training.session import TrainingSession
from manyheads.training.state import restore, seed_all
from manyheads.versions import check_complete

logger = logging.getLogger(__name__)

Checkpoint = tuple[JsonObject, JsonObject]  # JSON content and tensors of a checkpoint


def start_or_resume(session: TrainingSession, record: JsonMapping | None, *, resume: bool) -> Summary | None:
    """Restore the last checkpoint into the session, or start at step 0. Then start the clock.

    record  content of state/run.json, from which the run can be resumed and its model used. If None, the file is not
            written

    Returns the summary of the run if it is already finished, otherwise None. Raises UserError if the directory contains
    another run.
    """
    checkpoint = session.checkpoints.latest() if resume else None
    _refuse_unshared_directory(session, checkpoint)
    if checkpoint:
        _refuse_another_run(session, checkpoint[0])
    finished = session.out / "state" / FINISHED
    unchanged = checkpoint is None or checkpoint[0]["config"] == session.identity["config"]
    if finished.exists() and unchanged:
        logger.info(
            f"{session.out}: this run is finished, so there is nothing to resume; to train it longer, add for example "
            f"training.steps={2 * checkpoint[0]['step'] if checkpoint else 1000} to the command"
        )
        return Summary.read(finished)
    session.ranks.wait()
    if session.ranks.first:
        # Write the settings only after all checks, so that no file changes if the run cannot be resumed.
        write_json(session.out / "state" / COMMAND, session.resume_command)
        if record is not None:
            write_json(session.out / "state" / RUN, record)
        # The user has raised the number of steps, epochs or minutes, so the finished run continues.
        finished.unlink(missing_ok=True)
    if checkpoint:
        _resume(session, checkpoint)
    else:
        _start(session, resume)
    session.start_clock()
    return None


def _resume(session: TrainingSession, checkpoint: Checkpoint) -> None:
    content, tensors = checkpoint
    session.counters = restore(session.model, session.optimizer, session.ema_weights, tensors, content)
    for lost in session.counters.forget_lost(content["files"]):
        logger.warning(f"{lost}; the final weights may differ from those of an undamaged run")
    _warn_of_another_environment(content["environment"], session.identity["environment"])
    logger.info(f"{session.out}: resuming after step {session.counters.step:,}")


def _start(session: TrainingSession, resume: bool) -> None:
    if resume:
        logger.info(f"{session.out}: no checkpoint to resume, starting from the beginning")
    steps = steps_per_epoch(session.config, session.batches_per_epoch)
    if session.ranks.first and (warning := warmup_warning(session.config, steps)):
        logger.warning(f"{warning}")
    seed_all(session.config.seed)
    session.strategy.save(partial(session.objective.save, session.out / "state" / MODEL))


def _refuse_unshared_directory(session: TrainingSession, checkpoint: Checkpoint | None) -> None:
    """Raise UserError if the ranks have read different checkpoints, because they do not share the run directory."""
    step = -1 if checkpoint is None else checkpoint[0]["step"]
    negative_min, max_step = session.ranks.all_reduce_max(-step, step)
    if -negative_min != max_step:
        raise UserError(
            f"{session.out}: the processes found different checkpoints: expected a directory that all of them share"
        )


def _refuse_another_run(session: TrainingSession, saved: JsonMapping) -> None:
    """Raise UserError if the checkpoint was written with other settings, with other data, or by an earlier version."""
    out, now = session.out, session.identity
    check_complete(out, missing_fields(session.config, saved["config"]))
    differences = session.config.differs_from(saved["config"])
    old, new = saved["settings"], now["settings"]
    differences += [f"{k}: {old.get(k)!r} -> {new.get(k)!r}" for k in {**old, **new} if old.get(k) != new.get(k)]
    if old.get("fingerprints") != new.get("fingerprints"):
        raise UserError(f"{out}: the data has changed since the run was started; resume it with the same data")
    refuse_differences(out, differences)
    if saved["batches"] != now["batches"]:
        raise UserError(
            f"{out}: the data has changed: expected {saved['batches']} batches per epoch, found {now['batches']}"
        )


def refuse_differences(out: Path, differences: list[str]) -> None:
    """Raise UserError if the settings of a resumed run differ from those that it was started with."""
    if differences:
        raise UserError(
            f"{out} was started with other settings and cannot be resumed with these; its command is: "
            f"{resume_command(out)}; differences: {'; '.join(differences)}"
        )


def _warn_of_another_environment(saved: JsonMapping, now: JsonMapping) -> None:
    changed = [f"{k}: {saved.get(k)} -> {now.get(k)}" for k in {**saved, **now} if saved.get(k) != now.get(k)]
    if changed:
        logger.warning(
            f"this resume will NOT be bit-identical, because the environment has changed: {'; '.join(changed)}"
        )
