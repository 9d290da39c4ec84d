"""What a run reports and writes: progress, metrics.jsonl, TensorBoard events, loss.png."""

import json
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

from manyheads.files import parse_json, write

logger = logging.getLogger(__name__)

_WRITTEN_BY = {"tensorboard": "TensorBoard events", "matplotlib": "loss.png"}
SECONDS = 0.5  # between two reports of progress
HELD_UP = 0.05  # share of the time that training waits for its data, from which on it is shown
# metrics between 0 and 1: loss.png shows the first that was measured; of the first two training has an "accuracy", too
SHARES = ("top1", "accuracy", "entity_f1", "squad_f1", "exact_match")


@dataclass(frozen=True)
class Progress:
    """How far a training is. As text: one line.

    fraction      of the run that is done, 0 to 1
    loss          mean over the last `log_every` steps; None before the first
    rate          units (tokens, images, ...) per second
    unit          what `rate` counts
    peak          fraction of the rate that the machine's matrix products alone would allow; None if unknown
    waiting       fraction of the time that the loop waited for data
    seconds_left  infinity if unknown
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
        return f"{self.fraction:4.0%}  {self.text}"

    @property
    def text(self) -> str:
        """The line without the fraction."""
        loss = "" if self.loss is None else f"loss {self.loss:.4f}  "
        peak = "" if self.peak is None else f"{self.peak:.0%} of peak  "
        held_up = f"{self.waiting:.0%} waiting for data  " if self.waiting >= HELD_UP else ""
        left = _clock(self.seconds_left)
        return f"step {self.step:,}  {loss}{self.rate:,.0f} {self.unit}/s  {peak}{held_up}{left} left"


ProgressCallback = Callable[[Progress], None]


class ProgressMeter:
    """Measures progress and reports it to a callback every half second.

    report  receives each `Progress`; None: nothing is measured
    unit    what a task counts: tokens, images, ...
    peak    measures how many units a second the machine could do if it did nothing but their matrix products. Called
            once, before the first report, with the clock stopped. None: unknown

    The clock starts after the first step, which takes longer than all others: worker processes start, files are read
    for the first time, kernels are chosen. What comes later, validations too, is part of the run's pace.
    """

    def __init__(self, report: ProgressCallback | None, unit: str, peak: Callable[[], float] | None = None) -> None:
        self._report, self._unit, self._measure_peak = report, unit, peak
        self._peak: float | None = None
        self._start: tuple[float, float] | None = None  # time and fraction after the first step
        self._reported = time.monotonic()
        self._counted = 0  # units since the first step
        self.loss: float | None = None
        self.waiting = 0.0

    def step(self, step: int, count: int, fraction: float) -> None:
        """Count a step of `count` units, after which this fraction of the run is done."""
        now = time.monotonic()
        if self._start is None:
            self._start = now, fraction
            return
        self._counted += count
        if self._report is None or now - self._reported < SECONDS:
            return
        elapsed, progress = now - self._start[0], fraction - self._start[1]
        if self._peak is None and self._measure_peak is not None:
            self._peak = self._measure_peak()
            now = time.monotonic()
            self._start = now - elapsed, self._start[1]
        self._reported = now
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
    """metrics.jsonl and TensorBoard events under `out`, continued after a resume without doubles.

    `step` and `validated` say what the checkpoint covers: later entries are dropped, since they will be made again.
    """

    def __init__(self, out: Path, step: int, validated: int) -> None:
        self.path = out / "metrics.jsonl"
        if self.path.exists():  # its last line may be torn
            kept = [e for e in read_metrics(self.path) if e["step"] <= (validated if "validation" in e else step)]
            write(self.path, "".join(json.dumps(entry) + "\n" for entry in kept))
        self._file = self.path.open("a", encoding="utf-8")
        self._events: Any = None
        missing = [name for name in ("tensorboard", "matplotlib") if find_spec(name) is None]
        if missing:
            logger.warning(
                "%s not installed: a run writes metrics.jsonl, but no %s: pip install 'manyheads[analysis]'",
                " and ".join(missing), " and no ".join(_WRITTEN_BY[name] for name in missing),
            )  # fmt: skip
        if "tensorboard" not in missing:
            from torch.utils.tensorboard import SummaryWriter  # slow to import

            self._events = SummaryWriter(str(out / "events"), purge_step=step + 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        if self._events is not None:
            self._events.close()

    def log(self, step: int, entry: dict[str, Any]) -> None:
        self._file.write(json.dumps({"step": step, **entry}) + "\n")
        self._file.flush()
        if self._events is None:
            return
        scope = "validation" if "validation" in entry else "train"
        for name, value in entry.get("validation", entry).items():
            self._events.add_scalar(f"{scope}/{name}", value, step)

    def sync(self) -> None:
        """Everything logged so far is on disk: call before a checkpoint that relies on it is committed."""
        os.fsync(self._file.fileno())


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The entries of a metrics.jsonl; a line that is none, such as one cut off by a kill, is left out.

    None where there is no file: a run without steps, such as a fit at once, writes none.
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


def draw_losses(out: Path, *, by_epoch: bool) -> None:
    """loss.png: training and validation loss, and beside them the share that is right, where the task measures one.

    Over epochs where each was validated at its end (`by_epoch`), else over steps. The training's are means of
    `log_every` steps, measured while it trains, with dropout.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        return  # `Metrics` has said so

    entries = read_metrics(out / "metrics.jsonl")
    validations = [entry for entry in entries if "validation" in entry]
    unit, size = "step", 1.0
    if by_epoch and validations:
        unit, size = "epoch", validations[-1]["step"] / validations[-1]["epoch"]
    share = next((name for name in SHARES if any(name in entry["validation"] for entry in validations)), None)
    shown = {"loss": "loss"} | ({} if share is None else {share: "accuracy"})  # as the training calls them
    figure = Figure(figsize=(7 if share is None else 11, 4), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, (name, in_training) in zip(figure.subplots(1, len(shown), squeeze=False)[0], shown.items(), strict=True):
        training = [(e["step"] / size, e[in_training]) for e in entries if in_training in e]
        validation = [(e["step"] / size, e["validation"][name]) for e in validations if name in e["validation"]]
        for label, points, marker in (("training", training, ""), ("validation", validation, "o")):
            if points:
                axes.plot(*zip(*points, strict=True), label=label, marker=marker, markersize=3)
        axes.set(xlabel=unit, ylabel=name)
        axes.grid(alpha=0.3)
        if training or validation:
            axes.legend()
    figure.savefig(out / "loss.png", dpi=120)
