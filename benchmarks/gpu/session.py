"""Session of a part: a device, a deadline, and a file that takes every figure as soon as it is known."""

from __future__ import annotations

import gc
import json
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from benchmarks.ceilings import Ceilings
from manyheads.core.runtime import ComputeConfig, prepare
from manyheads.training.step import BatchTooLargeError

ROUNDS = 3
SECONDS = 1.0  # of a round at least


@dataclass(frozen=True)
class Session:
    """A part's view of the run.

    until  time.monotonic() at which the part has to be done
    out    file of the entries, a JSON document a line
    rates  published or measured peak rates, which give the limit of a case
    """

    device: str
    tiny: bool
    until: float
    out: Path
    rates: Ceilings

    @property
    def left(self) -> float:
        return self.until - time.monotonic()

    def compute(self, precision: Any = "bf16", *, compile: bool = False) -> ComputeConfig:
        return prepare(precision, device=self.device, compile=compile)

    def tell(self, **entry: Any) -> None:
        with self.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")

    def attempt(
        self, where: Mapping[str, Any], engine: str, measure: Callable[[], Mapping[str, Any]], seconds: float = 5.0
    ) -> None:
        """Write down what `measure` finds, or why there is no figure: no time, too little memory, or an error.

        seconds  time that it needs at least; with less left it is not tried
        """
        entry = {**where, "engine": engine}
        began = time.monotonic()
        if self.left < (1.0 if self.tiny else seconds):
            self.tell(**entry, left_out=f"{self.left:.0f} s left, about {seconds:.0f} s are needed")
            return
        if engine.startswith("transformers") and find_spec("transformers") is None:
            self.tell(**entry, left_out="transformers is not installed")
            return
        try:
            self._forget()
            found = dict(measure())
            if self.device == "cuda":
                found["memory_gb"] = round(torch.cuda.max_memory_allocated() / 1e9, 2)
            self.tell(**entry, **found, seconds=round(time.monotonic() - began, 1))
        except Exception as error:
            traceback.print_exc()
            self.tell(**entry, left_out=f"{type(error).__name__}: {error}".splitlines()[0])

    def _forget(self) -> None:
        gc.collect()
        torch.compiler.reset()
        if self.device == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    def wait(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()

    def figures(self, run: Callable[[], float]) -> list[float]:
        """Return units a second of several rounds; `run` does some work and returns its units. The first is no round.

        Rounds end early when the time is over, after at least one.
        """
        run()
        self.wait()
        found: list[float] = []
        least = 0.05 if self.tiny else SECONDS
        while len(found) < ROUNDS and (not found or self.left > 2 * least):
            done, began = 0.0, time.perf_counter()
            while (took := time.perf_counter() - began) < least:
                done += run()
                self.wait()
            found.append(done / took)
        return found

    @contextmanager
    def plain(self, precision: Any = "float32") -> Iterator[ComputeConfig]:
        """Inference in PyTorch's own modules, as the reference and the other library run."""
        compute = self.compute(precision)
        with torch.inference_mode(), compute.autocast() if precision == "float32" else nullcontext():
            yield compute


def smaller(sizes: Sequence[int], measure: Callable[[int], Mapping[str, Any]]) -> Mapping[str, Any]:
    """Measure with the first of the sizes that fits into memory; name it if it is not the first."""
    for size in sizes:
        try:
            found = measure(size)
            return found if size == sizes[0] else {**found, "batch": size}
        except (torch.OutOfMemoryError, BatchTooLargeError):
            if size == sizes[-1]:
                raise
        gc.collect()  # behind the error, which holds the tensors of the step
        torch.cuda.empty_cache()
    raise AssertionError("no sizes")
