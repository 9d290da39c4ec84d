"""What a run shows and leaves to look at: progress on stderr, metrics.jsonl, TensorBoard events, loss.png."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from manyheads.files import parse_json, write

PLAIN_SECONDS = 30.0  # between lines when stderr is no terminal
BAR_SECONDS = 0.5
HELD_UP = 0.05  # share of the time that training waits for its data, from which on it is shown
# metrics between 0 and 1: loss.png shows the first that was measured; of the first two training has an "accuracy", too
SHARES = ("top1", "accuracy", "entity_f1", "squad_f1", "exact_match")


def say(message: str) -> None:
    """One line on stderr."""
    Console(stderr=True, soft_wrap=True, highlight=False, markup=False).print(message)


class Display:
    """Progress on stderr: step, loss, what the task counts (`unit`) per second, the share of the peak, time left; and
    how much of the time is spent waiting for data, where that is much.

    peak  measures how many of them a second the machine could do if it did nothing but the products that they need.
          Asked once, when there is a line to show, with the clock stopped. None: not known, and no share is shown

    The clock starts after the first step, which takes longer than all others: worker processes start, files are read
    for the first time, kernels are chosen. What comes later, validations too, is part of the run's pace.
    """

    def __init__(self, unit: str, peak: Callable[[], float] | None = None) -> None:
        console = Console(stderr=True, highlight=False)
        self._bar = Progress(
            TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[text]}"),
            console=console, refresh_per_second=2, disable=not console.is_terminal,
        )  # fmt: skip
        self._task = self._bar.add_task("training", total=1.0, text="")
        self._unit, self._measure_peak = unit, peak
        self._peak: float | None = None
        self._start: tuple[float, float] | None = None  # time and fraction after the first step
        self._shown = time.monotonic()
        self._counted = 0  # target tokens, images, ... since the first step
        self.loss: float | None = None
        self.waiting = 0.0  # share of the time that the loop waited for its next batch

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def step(self, step: int, count: int, fraction: float) -> None:
        """A step with so many target tokens, images, ... is done, and with it this fraction of the run."""
        now = time.monotonic()
        if self._start is None:
            self._start = now, fraction
            return
        self._counted += count
        if now - self._shown < (PLAIN_SECONDS if self._bar.disable else BAR_SECONDS):
            return
        elapsed, progress = now - self._start[0], fraction - self._start[1]
        if self._peak is None and self._measure_peak is not None:
            self._peak = self._measure_peak()
            now = time.monotonic()
            self._start = now - elapsed, self._start[1]
        self._shown = now
        left = elapsed * (1 - fraction) / progress if progress > 0 else float("inf")
        loss = "" if self.loss is None else f"loss {self.loss:.4f}  "
        rate = self._counted / elapsed
        share = "" if self._peak is None else f"{rate / self._peak:.0%} of peak  "
        held_up = f"{self.waiting:.0%} waiting for data  " if self.waiting >= HELD_UP else ""
        text = f"step {step:,}  {loss}{rate:,.0f} {self._unit}/s  {share}{held_up}{_clock(left)} left"
        if self._bar.disable:
            say(f"{fraction:4.0%}  {text}")
        else:
            self._bar.update(self._task, completed=fraction, text=text)

    def note(self, message: str) -> None:
        """A line that stays."""
        self._bar.console.print(message, markup=False, soft_wrap=True) if not self._bar.disable else say(message)


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
        from torch.utils.tensorboard import SummaryWriter  # slow to import

        self.path = out / "metrics.jsonl"
        if self.path.exists():  # its last line may be torn
            kept = [e for e in read_metrics(self.path) if e["step"] <= (validated if "validation" in e else step)]
            write(self.path, "".join(json.dumps(entry) + "\n" for entry in kept))
        self._file = self.path.open("a", encoding="utf-8")
        self._events = SummaryWriter(str(out / "events"), purge_step=step + 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._events.close()

    def log(self, step: int, entry: dict[str, Any]) -> None:
        self._file.write(json.dumps({"step": step, **entry}) + "\n")
        self._file.flush()
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
        return say("no loss.png: matplotlib is not installed")

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
