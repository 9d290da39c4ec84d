"""Log of a training run: progress line, metrics.jsonl, TensorBoard events and the plot loss.png.

Does not import torch.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np

from manyheads.files import JsonObject, parse_json, write
from manyheads.training.schedules import finished_fraction

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

    from manyheads.training.prefetching import Group
    from manyheads.training.session import TrainingSession
    from manyheads.training.step import StepResult

logger = logging.getLogger(__name__)

_WRITTEN_BY = {"tensorboard": "TensorBoard events", "matplotlib": "loss.png"}
REPORT_SECONDS = 0.5  # seconds between two progress reports
MIN_WAITING = 0.05  # The progress line shows the time spent waiting for data if it exceeds this fraction of the time.
# Names of metrics with values from 0 to 1. The plot loss.png shows the first of these metrics that was measured. The
# training log calls the first two "accuracy".
FRACTIONS = ("top1", "accuracy", "entity_f1", "squad_f1", "exact_match")


@dataclass(frozen=True)
class Progress:
    """Progress of a training run. Converted to a string, it is one line of text.

    fraction      finished fraction of the run, 0 to 1
    loss          mean loss over the last `log_every` steps; None before the first log entry
    rate          number of tokens, images or other units that training processes per second
    unit          name of these units, such as "tokens"
    peak          `rate` as a fraction of the rate at which this machine's speed in matrix products would be the only
                  limit; None if unknown
    waiting       fraction of the time that the loop waited for data
    seconds_left  estimated remaining time; infinity if unknown
    """

    step: int
    fraction: float
    loss: float | None
    rate: float
    unit: str
    peak: float | None
    waiting: float
    seconds_left: float

    def __str__(self) -> str:
        return "  ".join([f"{self.fraction:4.0%}", *self.details, self.left])

    @property
    def left(self) -> str:
        return f"{_clock(self.seconds_left)} left"

    @property
    def details(self) -> list[str]:
        """Return the step, the loss and the speed as texts, the most important first."""
        loss = [] if self.loss is None else [f"loss {self.loss:.4f}"]
        peak = [] if self.peak is None else [f"{self.peak:.0%} of this machine's peak"]
        waiting = [f"{self.waiting:.0%} waiting for data"] if self.waiting >= MIN_WAITING else []
        return [f"step {self.step:,}", *loss, f"{self.rate:,.0f} {self.unit}/s", *peak, *waiting]


ProgressCallback = Callable[[Progress], None]
# A function that receives each entry of metrics.jsonl. If it returns False, the run stops.
LogCallback = Callable[[JsonObject], bool | np.bool_ | None]


class ProgressMeter:
    """Meter of the progress of a run, which reports it to a callback every half second.

    report  callback that receives each `Progress`. If None, nothing is measured
    unit    name of the units that an objective counts, such as tokens or images
    peak    function that returns the maximum number of units per second of this machine, computed from its speed in
            matrix products. It is called once, before the first report, and its time is not counted. If None, the
            progress does not contain the fraction of this maximum

    The clock starts after the first step. That step is slower than the others, because worker processes start, files
    are read for the first time and kernels are selected. All later time counts, including validation.
    """

    def __init__(self, report: ProgressCallback | None, unit: str, peak: Callable[[], float] | None = None) -> None:
        self._report, self._unit, self._measure_peak = report, unit, peak
        self._peak: float | None = None
        # time at the end of the first step, and the fraction of the run that was finished then
        self._start: tuple[float, float] | None = None
        self._reported, self._any_reported = time.monotonic(), False
        self._counted = 0  # number of units (tokens, images, ...) since the first step
        self.loss: float | None = None
        self.waiting = 0.0

    def step(self, step: int, count: int, fraction: float) -> None:
        """Record that a training step has finished.

        step      number of the step
        count     number of units (tokens, images, ...) in its batch
        fraction  finished fraction of the run after this step
        """
        now = time.monotonic()
        if self._start is None:
            self._start = now, fraction
            return
        self._counted += count
        is_last = fraction >= 1 and self._any_reported  # so that a bar ends at 100%
        if self._report is None or (now - self._reported < REPORT_SECONDS and not is_last):
            return
        elapsed, progress = now - self._start[0], fraction - self._start[1]
        if self._peak is None and self._measure_peak is not None:
            self._peak = self._measure_peak()
            now = time.monotonic()
            self._start = now - elapsed, self._start[1]
        self._reported, self._any_reported = now, True
        left = elapsed * (1 - fraction) / progress if progress > 0 else float("inf")
        rate = self._counted / elapsed
        peak = None if self._peak is None else rate / self._peak
        self._report(Progress(step, fraction, self.loss, rate, self._unit, peak, self.waiting, left))


def _clock(seconds: float) -> str:
    if seconds == float("inf"):
        return "?"
    hours, rest = divmod(int(seconds), 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}" if hours else f"{rest // 60}:{rest % 60:02}"


class Metrics:
    """Writer of metrics.jsonl and TensorBoard events in the directory `out`.

    A resumed run appends to the files of the earlier session without duplicate entries.

    step       step of the checkpoint from which the run is resumed. Training entries of later steps are removed from
               the files, because the resumed run writes them again
    validated  step of the last validation before this checkpoint; validation entries of later steps are removed, too
    """

    def __init__(self, out: Path, step: int, validated: int) -> None:
        self.path = out / "metrics.jsonl"
        if self.path.exists():  # If the process was killed while writing, the last line of the file may be incomplete.
            earlier = [e for e in read_metrics(self.path) if e["step"] <= (validated if "validation" in e else step)]
            write(self.path, "".join(json.dumps(entry) + "\n" for entry in earlier))
        self._file = self.path.open("a", encoding="utf-8")
        self._events: SummaryWriter | None = None
        missing = [name for name in _WRITTEN_BY if find_spec(name) is None]
        if missing:
            logger.warning(
                "%s not installed: writing metrics.jsonl, but no %s; to install: pip install 'manyheads[analysis]'",
                " and ".join(missing), " and no ".join(_WRITTEN_BY[name] for name in missing),
            )  # fmt: skip
        if "tensorboard" not in missing:
            # Import TensorBoard only when it is used, because the import is slow.
            from torch.utils.tensorboard import SummaryWriter

            self._events = SummaryWriter(str(out / "events"), purge_step=step + 1)

    def close(self) -> None:
        self._file.close()
        if self._events is not None:
            self._events.close()

    def log(self, step: int, entry: JsonObject) -> None:
        self._file.write(json.dumps({"step": step, **entry}) + "\n")
        self._file.flush()
        if self._events is None:
            return
        scope = "validation" if "validation" in entry else "train"
        for name, value in entry.get("validation", entry).items():
            self._events.add_scalar(f"{scope}/{name}", value, step)

    def sync(self) -> None:
        """Write all logged entries to disk.

        The loop calls this method before a checkpoint becomes valid: a resumed run expects all log entries up to its
        checkpoint.
        """
        os.fsync(self._file.fileno())


def read_metrics(path: Path) -> list[JsonObject]:
    """Return the entries of a metrics.jsonl file; an empty list if the file does not exist.

    Invalid lines are skipped, such as the incomplete last line of a process that was killed.
    """
    if not path.is_file():
        return []
    entries = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            entry = parse_json(line)
        except ValueError:
            continue
        if isinstance(entry, dict) and isinstance(entry.get("step"), int):
            entries.append(entry)
    return entries


def draw_losses(out: Path, *, by_epoch: bool, chosen: int | None = None) -> None:
    """Draw loss.png: training and validation loss, and a second plot of the accuracy if the objective measures it.

    The x axis shows epochs if each epoch was validated at its end (`by_epoch`), otherwise steps. Training values are
    means over `log_every` steps, measured in training mode with dropout. A circle marks the validation of the step
    `chosen`, whose weights are the final ones.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        return  # Matplotlib is missing; `Metrics` has already logged a warning.

    entries = read_metrics(out / "metrics.jsonl")
    validations = [entry for entry in entries if "validation" in entry]
    unit, size = "step", 1.0
    if by_epoch and validations:
        unit, size = "epoch", validations[-1]["step"] / validations[-1]["epoch"]
    metric = next((name for name in FRACTIONS if any(name in entry["validation"] for entry in validations)), None)
    # name of each validation metric to plot -> name of the same quantity in the entries of training steps
    plots = {"loss": "loss"} | ({} if metric is None else {metric: "accuracy"})
    figure = Figure(figsize=(7 if metric is None else 11, 4), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, (name, in_training) in zip(figure.subplots(1, len(plots), squeeze=False)[0], plots.items(), strict=True):
        training = [(e["step"] / size, e[in_training]) for e in entries if in_training in e]
        validation = [(e["step"] / size, e["validation"][name]) for e in validations if name in e["validation"]]
        for label, points, marker in (("training", training, ""), ("validation", validation, "o")):
            if points:  # A line of one point would be invisible without a marker.
                axes.plot(
                    *zip(*points, strict=True), label=label, marker=marker or "o" * (len(points) == 1), markersize=3
                )
        ring = [point for point in validation if chosen is not None and point[0] == chosen / size]
        if ring:
            axes.plot(*ring[-1], "o", color="C1", markersize=9, fillstyle="none", label="final weights")
        axes.set(xlabel=unit, ylabel=name)
        axes.grid(alpha=0.3)
        if training or validation:
            axes.legend()
    figure.savefig(out / "loss.png", dpi=120)


class RunLog:
    """Reporter of the training steps and validations of a session. Only rank 0 reports progress and writes files.

    flops      training FLOPs per unit of the objective. If given, progress shows model FLOPs utilization
    progress   callback that receives the progress of the run
    callbacks  functions that receive each entry of metrics.jsonl. A function that returns False stops the session
    """

    def __init__(
        self, session: TrainingSession, flops: float | None, progress: ProgressCallback | None,
        callbacks: Sequence[LogCallback] = (),
    ) -> None:  # fmt: skip
        self._session, self._callbacks = session, callbacks
        peak = (lambda: session.ranks.world * session.compute.products_per_second() / flops) if flops else None
        self._meter = ProgressMeter(progress if session.ranks.first else None, session.objective.unit, peak)
        self._metrics: Metrics | None = None

    def __enter__(self) -> Self:
        session, counters = self._session, self._session.counters
        if session.ranks.first:
            self._metrics = Metrics(session.out, counters.step, counters.validated)
        self._logged_at, self._logged_tokens, self._data_wait_seconds = session.elapsed(), counters.tokens, 0.0
        return self

    def __exit__(self, *_: object) -> None:
        if self._metrics is not None:
            self._metrics.close()

    def sync(self) -> None:
        """Write all logged entries to disk, and wait until they are on disk."""
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
        session, config, counters = self._session, self._session.config, self._session.counters
        if result.skipped is not None:
            logger.warning(result.skipped)
            self._write({"epoch": counters.epoch, "skipped": counters.skipped})
        fraction = finished_fraction(config, counters, session.batches_per_epoch)
        self._meter.step(counters.step, result.targets, fraction)
        if result.skipped is not None or counters.step % config.log_every:
            return
        now = session.elapsed()
        seconds, unit = now - self._logged_at, session.objective.unit
        self._meter.loss = counters.window_loss / counters.window_tokens
        accuracy = {"accuracy": counters.window_correct / counters.window_tokens} if result.has_classes else {}
        self._meter.waiting = self._data_wait_seconds / seconds
        self._write(
            {
                "epoch": counters.epoch, "loss": self._meter.loss, **accuracy,
                "learning_rate": session.learning_rate(counters.step),
                "gradient_norm": result.gradient_norm, unit: counters.tokens,
                f"{unit}_per_second": round((counters.tokens - self._logged_tokens) / seconds, 1),
                "waiting": round(self._meter.waiting, 4), "seconds": round(session.seconds_before + now, 2),
            }
        )  # fmt: skip
        counters.window_tokens, counters.window_loss, counters.window_correct = 0, 0.0, 0.0
        self._logged_at, self._logged_tokens, self._data_wait_seconds = now, counters.tokens, 0.0

    def _write(self, entry: JsonObject) -> None:
        if self._metrics is not None:
            self._metrics.log(self._session.counters.step, entry)
            for callback in self._callbacks:
                answer = callback({"step": self._session.counters.step, **entry})
                if isinstance(answer, bool | np.bool_) and not answer:
                    self._session.stopped = True


def metrics_line(values: Mapping[str, float]) -> str:
    return "  ".join(f"{name} {value:.4g}" for name, value in values.items())
