"""Log of a training run: progress display, metrics.jsonl and TensorBoard events."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Self

import numpy as np

from manyheads.training.budgets import finished_fraction
from manyheads.training.prefetching import Group
from manyheads.training.progress import LogCallback, Metrics, ProgressCallback, ProgressMeter
from manyheads.training.session import TrainingSession
from manyheads.training.step import StepResult

logger = logging.getLogger(__name__)


class RunLog:
    """Reporter of the training steps and validations of a session. Only rank 0 reports progress and writes files.

    flops     training FLOPs per unit of the objective; if given, progress shows model FLOPs utilization
    progress  callback that receives the progress of the run
    callbacks functions that receive each entry of metrics.jsonl; one that returns False stops the session
    """

    def __init__(
        self, session: TrainingSession, flops: float | None, progress: ProgressCallback | None,
        callbacks: Sequence[LogCallback] = (),
    ) -> None:  # fmt: skip
        self._session, self._callbacks = session, callbacks
        peak = (lambda: session.ranks.world * session.compute.products_per_second() / flops) if flops else None
        self._meter = ProgressMeter(progress if session.ranks.first else None, session.objective.unit, peak)
        self._metrics: Metrics | None = None
        self._contexts = ExitStack()

    def __enter__(self) -> Self:
        session, counters = self._session, self._session.counters
        if session.ranks.first:
            self._metrics = self._contexts.enter_context(Metrics(session.out, counters.step, counters.validated))
        self._start_window(session.elapsed())
        return self

    def __exit__(self, *error: Any) -> None:
        self._contexts.__exit__(*error)

    def sync(self) -> None:
        """Write all logged entries to disk. Returns after they are on disk."""
        if self._metrics is not None:
            self._metrics.sync()

    def next_group(self, groups: Iterator[Group]) -> Group:
        """Return the micro-batches of the next step, and measure the time that training waits for them."""
        started = self._session.elapsed()
        group = next(groups)
        self._data_wait_seconds += self._session.elapsed() - started
        return group

    def validation(self, values: Mapping[str, float]) -> None:
        self._write({"epoch": self._session.counters.epoch, "validation": values})
        logger.info(f"step {self._session.counters.step:,}  validation  {metrics_line(values)}")

    def step(self, result: StepResult) -> None:
        """Report a training step. Every `log_every` steps, log the mean loss and accuracy since the last log entry."""
        config, counters = self._session.config, self._session.counters
        if result.skipped is not None:
            logger.warning(result.skipped)
            self._write({"epoch": counters.epoch, "skipped": counters.skipped})
        fraction = finished_fraction(config, counters, self._session.batches_per_epoch)
        self._meter.step(counters.step, result.count, fraction)
        if result.finite and counters.step % config.log_every == 0:
            now = self._session.elapsed()
            self._log_window(result, now)
            self._start_window(now)

    def _log_window(self, result: StepResult, now: float) -> None:
        session, counters = self._session, self._session.counters
        seconds = now - self._logged_at
        self._meter.loss, accuracy = (total / counters.window_tokens for total in session.window.tolist())
        self._meter.waiting = self._data_wait_seconds / seconds
        self._write(
            {
                "epoch": counters.epoch, "loss": self._meter.loss,
                **({} if result.correct is None else {"accuracy": accuracy}),
                "learning_rate": session.learning_rate(counters.step),
                "gradient_norm": result.gradient_norm.item(), "tokens": counters.tokens,
                "tokens_per_second": round((counters.tokens - self._logged_tokens) / seconds, 1),
                "waiting": round(self._meter.waiting, 4), "seconds": round(session.seconds_before + now, 2),
            }
        )  # fmt: skip
        session.window.zero_()
        counters.window_tokens = 0

    def _start_window(self, now: float) -> None:
        self._logged_at, self._logged_tokens = now, self._session.counters.tokens
        self._data_wait_seconds = 0.0

    def _write(self, entry: dict[str, Any]) -> None:
        if self._metrics is not None:
            self._metrics.log(self._session.counters.step, entry)
            for callback in self._callbacks:
                answer = callback({"step": self._session.counters.step, **entry})
                if isinstance(answer, bool | np.bool_) and not answer:
                    self._session.stopped = True


def metrics_line(values: Mapping[str, float]) -> str:
    return "  ".join(f"{name} {value:.4g}" for name, value in values.items())
