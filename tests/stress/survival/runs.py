"""Tiny runs of every family (`tests/support/families.py`) that can be observed, killed, resumed and compared.

Importing PyTorch takes longer than such a run. Therefore each run is a fork of this process, which has imported all
modules but computed nothing.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import multiprocessing
import os
import shutil
import sys
import time
from collections.abc import Callable
from functools import cache
from multiprocessing.process import BaseProcess
from multiprocessing.sharedctypes import RawValue
from pathlib import Path
from typing import Any

import manyheads.files as files
import manyheads.training.checkpoints as checkpoints
import manyheads.training.session as session
from manyheads.data.embedded import phrases, tags
from manyheads.training.run_log import read_metrics
from tests.support import families

FORK = multiprocessing.get_context("fork")
# a checkpoint, a snapshot, a validation and the end of an epoch never fall together for long
RHYTHM: dict[str, Any] = {
    "steps": 24, "checkpoint_every": 4, "validate_every": 5, "average": 3, "average_every": 3, "metric": "loss",
}  # fmt: skip
CHANGES: dict[str, dict[str, Any]] = {
    "text-classifier": {"average": 1},  # it keeps a moving average
    "seq2seq-rnn": {"average": 1, "patience": 2},
    "vit": {"average": 1, "patience": 2, "ema": 0.9},
}
ROOMS = ("classification", "images", "language", "masked_words", "tagging", "translation")
PAPERS = ("directions", "universal")
START, STEPS, VALIDATION, END = "before the first step", "between checkpoints", "validation", "averaging at the end"
PHASES = (START, STEPS, VALIDATION, END)
TIMES = ("seconds", "waiting")  # and rates, such as tokens_per_second


def rhythm(name: str) -> dict[str, Any]:
    return {**RHYTHM, **CHANGES.get(name, {})}


class Watched:
    """Run in a separate process that reports its current phase."""

    def __init__(self, name: str, data: Path, out: Path, before: Callable[[], object] = lambda: None) -> None:
        """`before` is called in the process: it may make something fail."""
        self.out, self.log = out, data / f"{name}.log"
        self.log.unlink(missing_ok=True)
        self._phase, self._writing = RawValue("i", 0), RawValue("i", 0)
        self.process: BaseProcess = FORK.Process(target=self._run, args=(name, data, before))
        self.process.start()

    def _run(self, name: str, data: Path, before: Callable[[], object]) -> None:
        sys.stdout = sys.stderr = self.log.open("a", encoding="utf-8", buffering=1)
        self._mark()
        before()
        status = 0
        try:
            families.run(name, data, self.out, resume=True, **rhythm(name))
        except KeyboardInterrupt as error:
            print(error, file=sys.stderr)
            status = 130
        except (ValueError, OSError) as error:  # same format as the command line
            print(f"manyheads: {error}", file=sys.stderr)
            status = 2
        sys.stderr.flush()
        os._exit(status)

    def _mark(self) -> None:
        """Note what the run does; and let its disk be as slow as a real one, so that a kill meets a file half there."""
        families.score_nothing()
        sync = files._sync

        def slowly(path: Path) -> None:
            time.sleep(0.01)
            sync(path)

        files._sync = slowly
        kind, capture, write = session.TrainingSession, session.capture, checkpoints._write

        def marked(phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
            def call(*arguments: Any) -> Any:
                self._phase.value = PHASES.index(phase)
                result = function(*arguments)
                self._phase.value = PHASES.index(END if phase == END else STEPS)
                return result

            return call

        def written(*arguments: Any) -> str:
            self._writing.value = 1
            result = write(*arguments)
            self._writing.value = 0
            return result

        for owner, name, phase, function in (
            (kind, "validate", VALIDATION, kind.validate), (kind, "load_final_weights", END, kind.load_final_weights),
            (session, "capture", STEPS, capture),
        ):  # fmt: skip
            setattr(owner, name, marked(phase, function))
        setattr(checkpoints, "_write", written)  # noqa: B010

    def doing(self) -> str:
        """Return the current phase, or the last phase of a dead process."""
        if self._writing.value:
            committed = any((self.out).rglob("checkpoint-*.json"))
            return "writing a checkpoint" if committed else "the very first write"
        return PHASES[self._phase.value]

    def told(self) -> list[str]:
        """Return the lines that the run has printed."""
        return self.log.read_text(encoding="utf-8", errors="replace").splitlines()


def outcome(out: Path) -> dict[str, Any]:
    """Of each training below `out`: the digest of its final weights, its metrics and how it ended, without times."""
    trainings = {}
    for metrics in sorted(out.rglob("metrics.jsonl")):
        run = metrics.parent
        entries = [
            {k: v for k, v in entry.items() if k not in TIMES and not k.endswith("_per_second")}
            for entry in read_metrics(metrics)
        ]
        finished = json.loads((run / "state" / "finished.json").read_text(encoding="utf-8"))
        weights = hashlib.sha256((run / "model.safetensors").read_bytes()).hexdigest()
        ended = {k: v for k, v in finished.items() if k not in TIMES}
        trainings[str(run.relative_to(out))] = {"weights": weights, "metrics": entries, "ended": ended}
    return trainings


def undisturbed(name: str, data: Path, folder: Path) -> dict[str, Any]:
    """Return the result of a run without faults."""
    if name == "gpt-classifier" and not (data / "gpt2").exists():
        undisturbed("gpt2", data, folder)
        shutil.copytree(folder / "gpt2" / "gpt2", data / "gpt2")
    run = Watched(name, data, folder / name)
    run.process.join()
    assert run.process.exitcode == 0, run.told()
    return outcome(folder / name)


def prepare() -> None:
    """Import what runs import, and make the texts that they make, once for all forks."""
    for name in (
        "torch._dynamo", "torch.utils.tensorboard", "matplotlib.figure", "matplotlib.backends.backend_agg",
        "sklearn.datasets", "sacrebleu", "pyarrow", "manyheads.analysis.figures.token_similarity",
        "manyheads.data.images.loader",
        *(f"manyheads.tasks.{room}.{part}" for room in ROOMS for part in ("task", "objective")),
        *(f"papers.{paper}.{part}" for paper in PAPERS for part in ("run", "task")),
    ):  # fmt: skip
        importlib.import_module(name)
    phrases.cldr_pairs, tags.cldr_tagged = cache(phrases.cldr_pairs), cache(tags.cldr_tagged)
    phrases.cldr_pairs("en", "de", seed=1, size=1000)
    tags.cldr_tagged("en", seed=1, size=1000)
