"""Training loop: trains an objective on batches of data and writes the trained model into a directory."""

from __future__ import annotations

import errno
import logging
import math
import os
import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path

from manyheads.core.runtime import ComputeConfig, retain_memory
from manyheads.errors import UserError
from manyheads.files import JsonMapping, WriteError, write_json
from manyheads.training.config import TrainingConfig
from manyheads.training.distributed import distributed_context
from manyheads.training.objective import Objective
from manyheads.training.prefetching import Group, prefetch, step_groups
from manyheads.training.resume import start_or_resume
from manyheads.training.run_directory import (
    FINISHED,
    KEPT,
    MODEL,
    Summary,
    locked_run_directory,
    remove_leftovers,
    saved_message,
)
from manyheads.training.run_log import LogCallback, ProgressCallback, RunLog, draw_losses, metrics_line
from manyheads.training.schedules import reached_end, validation_due
from manyheads.training.session import Interrupted, Signals, TrainingSession
from manyheads.training.step import train_step

logger = logging.getLogger(__name__)

__all__ = ["Summary", "train"]


def train(
    objective: Objective,
    config: TrainingConfig,
    out: Path,
    *,
    compute: ComputeConfig,
    resume: bool = False,
    max_minutes: float | None = None,
    settings: JsonMapping | None = None,
    resume_command: str | None = None,
    record: JsonMapping | None = None,
    flops: float | None = None,
    progress: ProgressCallback | None = None,
    callbacks: Sequence[LogCallback] = (),
) -> Summary:
    """Train `objective.model` up to the first limit of `config`, then write the model directory into `out`.

    A session ends early, with a checkpoint, after `max_minutes` (status "stopped") or on Ctrl-C (`Interrupted`). With
    the same machine, torch, threads and compute configuration, a resumed run is bit-identical to an uninterrupted one.

    out        directory of the run
    resume     if True, continue from the last checkpoint in `out`
    settings   further settings that define the run (JSON). A run cannot be resumed with other settings or another
               config
    record     content of state/run.json, from which the run can be resumed, and its model used while it is unfinished
    flops      training FLOPs per unit of the objective (token, image). If given, progress shows model FLOPs utilization
    progress   callback that receives the progress of the run every half second
    callbacks  functions that receive each entry of metrics.jsonl. A function that returns False stops the session

    The final weights are the last weights by default, the mean of the last `average` snapshots if `average` is above 1,
    or the exponential moving average if `ema` is set. If `config.metric` is set, the weights with the best validation
    metric replace the final weights, unless the final weights are better.

    Under `torchrun`, the rows of every micro-batch are divided among the ranks (`distributed.py`); the run can be
    resumed with any number of ranks. The result is the same as with one process, except for dropout, whose random
    numbers differ between ranks.
    """
    if not (batches := len(objective.batches(0))):
        raise UserError("there are no training batches: the training data is empty")
    if config.metric is not None and config.metric not in objective.metrics:
        names = ", ".join(objective.metrics)
        raise UserError(f"the validation has no metric {config.metric!r}: expected one of {names}")
    ranks, signals = distributed_context(), Signals()
    lock = locked_run_directory(out, resume=resume) if ranks.first else nullcontext()
    keep_memory = retain_memory(low_memory=config.shard)
    with signals, lock, _report_disk_errors(out), compute.settings(), keep_memory as release_memory:
        if ranks.first:
            remove_leftovers(out)
        session = TrainingSession(
            objective, config, out, compute, batches=batches, settings=settings or {}, max_minutes=max_minutes,
            resume_command=resume_command or f"the same command with --out {out} --resume",
        )  # fmt: skip
        summary = start_or_resume(session, record, resume=resume)
        if summary is None:
            position = session.counters.epoch, session.counters.index
            groups = prefetch(step_groups(objective, *position, config.accumulate, session.data_ranks))
            with RunLog(session, flops, progress, callbacks) as log, session.checkpoints, closing(groups):
                summary = run_steps(session, groups, log, signals, release_memory)
        # A signal may have reached only one rank, so all ranks exchange the received signals.
        if summary.status == "finished" and max(ranks.all_reduce_max(signals.received)):
            raise Interrupted(
                f"interrupted after training; the model in {out} is complete; to evaluate it: {session.resume_command}"
            )
        return summary


def run_steps(
    session: TrainingSession,
    groups: Iterator[Group],
    log: RunLog,
    signals: Signals,
    release_memory: Callable[[], None],
) -> Summary:
    """Train until the run ends or the session stops, and return the summary of the run.

    release_memory  function called after each step, to return unused memory to the system (`retain_memory`)
    """
    config, counters = session.config, session.counters
    session.save(log.sync)
    session.model.train()
    while True:
        if (stopped := _stop_requested(session, log, signals)) is not None:
            return stopped
        if validation_due(config, counters):
            log.validation(session.validate())
        if config.keep_every is not None and not counters.index and counters.epoch % config.keep_every == 0:
            session.strategy.save(partial(session.objective.save, session.out / KEPT / f"epoch-{counters.epoch}"))
        if config.keep_steps is not None and counters.step % config.keep_steps == 0:
            session.strategy.save(partial(session.objective.save, session.out / KEPT / f"step-{counters.step}"))
        if (reason := reached_end(config, counters)) is not None:
            return _finish(session, log, reason)
        group = log.next_group(groups)
        result = train_step(session, group)
        release_memory()
        log.step(result)
        if config.average > 1 and counters.step % (config.average_every or config.checkpoint_every) == 0:
            counters.snapshots = [*counters.snapshots, session.snapshot()][-config.average :]
        if counters.step % config.checkpoint_every == 0:
            session.save(log.sync)


def _stop_requested(session: TrainingSession, log: RunLog, signals: Signals) -> Summary | None:
    """Write a checkpoint and end the session if its time is over or a signal arrived.

    Returns the summary of the session if `max_minutes` are over or a callback stopped it; None if it continues. Raises
    `Interrupted` after a signal. Collective: all ranks must call it.
    """
    counters, limit = session.counters, session.max_minutes
    seconds, received, stopped = session.ranks.all_reduce_max(session.elapsed(), signals.received, session.stopped)
    counters.seconds = session.seconds_before + seconds
    session.checkpoints.check()
    if not received and not stopped and (limit is None or seconds < limit * 60):
        return None
    session.save(log.sync, wait=True)
    if received:
        raise Interrupted(
            f"{signal.Signals(int(received)).name} after step {counters.step:,}; wrote a checkpoint; "
            f"resume with: {session.resume_command}"
        )
    cause = "a callback stopped the run" if stopped else "the time limit --max-minutes is reached"
    return Summary.of(counters, "stopped", f"{cause}; resume with: {session.resume_command}", "last", {})


def _finish(session: TrainingSession, log: RunLog, reason: str) -> Summary:
    """Select the final weights, then write the model directory and the summary of the run."""
    out = session.out
    session.save(log.sync, wait=True)
    description, step, values = session.load_final_weights()
    if not math.isfinite(values.get("loss", 0.0)):
        raise UserError(
            f"training diverged: the validation loss of the {description} weights is {values['loss']}; the run is not "
            f"finished. Start it again in another directory with a smaller training.learning_rate"
        )
    logger.info(f"finished ({reason}); {description} weights, validation: {metrics_line(values)}")
    logger.info(saved_message(str(session.strategy.save(partial(session.objective.save, out))), out))
    summary = Summary.of(session.counters, "finished", reason, description, values)
    if session.ranks.first:
        draw_losses(out, by_epoch=session.config.validate_every is None, chosen=step)
        write_json(out / "state" / FINISHED, asdict(summary))
        shutil.rmtree(out / "state" / MODEL, ignore_errors=True)
    return summary


@contextmanager
def _report_disk_errors(out: Path) -> Iterator[None]:
    """Raise a UserError if a write failed because the disk is full or disconnected."""
    full = errno.ENOSPC, errno.EDQUOT
    try:
        yield
    except (WriteError, OSError) as error:
        cause = error.__cause__ or error
        code = cause.errno if isinstance(cause, OSError) else None
        is_disk_error = code in (*full, errno.EIO, errno.ESTALE, errno.EROFS) or not (out / "state").is_dir()
        file = error.filename if isinstance(error, OSError) else None
        is_other_file = isinstance(file, (str, bytes)) and not Path(os.fsdecode(file)).resolve().is_relative_to(
            out.resolve()
        )
        if is_other_file or not (is_disk_error or isinstance(error, WriteError)):
            raise
        fault = error if isinstance(error, WriteError) else f"{out}: {error.strerror}; existing files are intact"
        hint = "free disk space" if code in full else "make the directory available again"
        raise UserError(f"{fault}: {hint} and use --resume") from error
