"""Fuzzing process of one target: python -m tests.stress.fuzzing.engine TARGET FOLDER SECONDS SEED

Atheris (libFuzzer) adds inputs that reach a new branch of our code, and mutates these further. Without Atheris,
inputs are mutations of the examples only. FOLDER receives `told.json` (the current counts), `findings/`, and `input/`
(the current input). If the process dies, `input/` holds the cause.
"""

from __future__ import annotations

import json
import os
import random
import re
import resource
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

GUIDED = find_spec("atheris") is not None
INSTRUMENTED = (
    "manyheads.data",
    "manyheads.interop",
    "manyheads.directory",
    "manyheads.files",
    "manyheads.core.config",
    "manyheads.runs",
    "manyheads.service",
    "manyheads.training.checkpoints",
    "manyheads.training.state",
    "manyheads.cli",
    "manyheads.tasks",
)


def main(arguments: Sequence[str]) -> None:
    name, folder, seconds, seed = arguments[0], Path(arguments[1]).resolve(), float(arguments[2]), int(arguments[3])
    os.chdir(folder)
    if GUIDED:
        import atheris

        with atheris.instrument_imports(include=list(INSTRUMENTED), enable_loader_override=False):
            from tests.stress.fuzzing.targets import target as target_of

            target = target_of(name)
    else:
        from tests.stress.fuzzing.targets import target as target_of

        target = target_of(name)
    from tests.stress.fuzzing.inputs import packed, unpacked
    from tests.stress.fuzzing.judging import Judge, limit_memory
    from tests.stress.fuzzing.mutations import MOST, mutated

    examples = target.examples(folder / "made")
    judge = Judge(folder, target.use, (str(folder), *target.readable), deadly=True)
    told = Told(folder)
    for example in examples:  # imports and caches what all inputs need, before memory is counted
        judge(example)
    limit_memory()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)

    def one(data: bytes) -> None:
        verdict = judge(unpacked(data))
        told.add(verdict, data)

    told.write()  # it has begun: what ends it from here is an input
    if GUIDED:
        _guided(one, [packed(example) for example in examples], folder, seconds, seed, MOST)
    else:
        draw, end = random.Random(seed), time.monotonic() + seconds
        while time.monotonic() < end:
            one(packed(mutated(draw.choice(examples), draw)))
    told.write()


def _guided(
    one: Callable[[bytes], None], examples: list[bytes], folder: Path, seconds: float, seed: int, most: int
) -> None:
    import atheris

    from tests.stress.fuzzing.inputs import packed, unpacked
    from tests.stress.fuzzing.mutations import mutated

    def mutate(data: bytes, size: int, seed: int) -> bytes:
        draw = random.Random(seed)
        files = mutated(unpacked(data), draw)
        if files and draw.random() < 0.15:
            name = draw.choice(sorted(files))
            files[name] = atheris.Mutate(files[name], min(size, max(64, 2 * len(files[name]))))
        return packed(files)[:size]

    corpus = folder / "corpus"
    corpus.mkdir(exist_ok=True)
    for number, example in enumerate(examples):
        (corpus / f"example-{number}").write_bytes(example)
    settings = [
        f"-max_total_time={max(1, round(seconds))}",
        f"-seed={seed}",
        f"-max_len={most}",
        "-rss_limit_mb=0",
        "-timeout=100000",
        "-len_control=0",
        "-verbosity=1",
        "-print_final_stats=1",
        "-handle_segv=0",
        "-handle_abrt=0",
        "-handle_bus=0",
        "-handle_ill=0",
        "-handle_fpe=0",
    ]
    atheris.Setup(["fuzz", *settings, str(corpus)], one, custom_mutator=mutate)
    atheris.Fuzz()


class Told:
    """Counts of a fuzzing process, written at intervals because the process may be killed."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.counts, self._written = folder, Counter[str](), time.monotonic()
        self.findings: dict[str, dict[str, Any]] = {}

    def add(self, verdict: Any, data: bytes) -> None:
        kind = "finding" if verdict.finding else "accepted" if verdict.accepted else "refused"
        self.counts[kind] += 1
        if verdict.finding and verdict.finding not in self.findings:
            keep(self.folder, verdict.finding, verdict.told, data)
            self.findings[verdict.finding] = {}
            self.write()
        if time.monotonic() > self._written + 0.5:
            self.write()

    def write(self) -> None:
        self._written = time.monotonic()
        temporary = self.folder / "told.json.new"
        temporary.write_text(json.dumps(dict(self.counts)))
        temporary.rename(self.folder / "told.json")


def keep(folder: Path, finding: str, told: str, data: bytes) -> None:
    """Save an input that is a finding, with its report."""
    name = re.sub(r"[^\w.:-]+", "-", finding)[:100]
    place = folder / "findings" / name
    place.mkdir(parents=True, exist_ok=True)
    (place / "input").write_bytes(data)
    (place / "told.txt").write_text(f"{finding}\n\n{told}\n", errors="backslashreplace")


if __name__ == "__main__":
    main(sys.argv[1:])
