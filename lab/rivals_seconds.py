"""Speed of each model in training and translation: `chrt -f 5 python -m lab.rivals_seconds DATA ROW=RUN ROW=RUN ...`.

DATA is the training corpus, such as `multi30k/train`, and the runs are trained English-to-French models. Every model
trains on the same batches, on one thread, in float32 and in bf16, and translates the same sentences, on one thread, in
float32 and without fused kernels. The rounds of all models alternate. The record `rivals/seconds.json` gets the
medians of the rounds: seconds of a training step in the precision of the run, and target tokens per second, greedily
and with beam 5.
"""

from __future__ import annotations

import os
import sys
import time
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import torch

from lab.records import RESULTS
from manyheads import directory
from manyheads.core.config import Precision
from manyheads.core.runtime import prepare
from manyheads.data.sources.corpora import ParallelSource
from manyheads.data.text.store import TokenStore
from manyheads.files import read_json, write_json
from manyheads.tasks.loading import load
from manyheads.tasks.translation.objective import Corpus, TranslationObjective
from manyheads.training.record import hardware
from papers.rivals.recipes import RIVALS

ROUNDS, BATCHES = 5, 6
SENTENCES, BEAMS = 100, (1, 5)
PRECISIONS: tuple[Precision, ...] = ("float32", "bf16")


def task(run: Path, data: str, precision: Precision) -> TranslationObjective:
    """Return the training task of a run, with its trained weights."""
    loaded = directory.load(run)
    loaded.model.train()
    assert loaded.tokenizer is not None
    pairs = ParallelSource(data=data, source="en", target="fr").read_one(data)
    cache = run / "state" / "tokens"
    sources, targets = (TokenStore.of(side, loaded.tokenizer, cache) for side in (pairs.sources, pairs.targets))
    corpus = Corpus(sources, targets, loaded.model.config.max_positions)
    return TranslationObjective(
        loaded.model, loaded.tokenizer, None, corpus, corpus, compute=prepare(precision, 1),
        batch_tokens=RIVALS.batch_tokens, smoothing=RIVALS.smoothing, seed=1,
    )  # fmt: skip


class Timed:
    """Model whose training steps are timed on the first batches of an epoch."""

    def __init__(self, run: Path, data: str, precision: Precision) -> None:
        self.task = task(run, data, precision)
        self.batches = list(islice(self.task.batches(0), BATCHES))
        self.optimizer = torch.optim.Adam(self.task.model.parameters(), 1e-5)
        self.rounds: list[float] = []

    def round(self) -> None:
        begun = time.perf_counter()
        for batch in self.batches:
            with self.task.compute.autocast():
                loss = self.task.loss(batch)
            (loss.total / loss.count).backward()
            torch.nn.utils.clip_grad_norm_(self.task.model.parameters(), 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad()
        self.rounds.append((time.perf_counter() - begun) / BATCHES)


def decoding(runs: dict[str, Path], data: str) -> dict[str, dict[str, float]]:
    """Return the target tokens per second that each model translates, for each beam width."""
    os.environ["MANYHEADS_ROUTE"] = "plain"  # PyTorch's modules for every model; only some have fused kernels
    models = {row: load(run, threads=1) for row, run in runs.items()}
    sources = list(islice(ParallelSource(data=data, source="en", target="fr").read_one(data).sources, SENTENCES))
    rounds: dict[tuple[str, int], list[float]] = {(row, beam): [] for row in runs for beam in BEAMS}
    for _ in range(ROUNDS + 1):
        for (row, beam), found in rounds.items():
            begun = time.perf_counter()
            texts = models[row].translate(sources, beam=beam)
            seconds = time.perf_counter() - begun
            found.append(sum(len(e.ids) for e in models[row].target_tokenizer.encode_batch(texts)) / seconds)
    return {row: {f"beam {beam}": round(median(rounds[row, beam][1:])) for beam in BEAMS} for row in runs}


def main(arguments: list[str]) -> int:
    data, *pairs = arguments
    runs = {row: Path(run) for row, _, run in (pair.partition("=") for pair in pairs)}
    translated = decoding(runs, data)
    models = {(row, kind): Timed(run, data, kind) for row, run in runs.items() for kind in PRECISIONS}
    for _ in range(ROUNDS + 1):
        for model in models.values():
            model.round()
    rows: dict[str, Any] = {}
    for row, run in runs.items():
        found = {kind: [round(s, 4) for s in sorted(models[row, kind].rounds[1:])] for kind in PRECISIONS}
        used = read_json(run / "result.json", "train it again")["route"]["precision"]
        rows[row] = {"precision": used, "seconds": median(found[used]), "rounds": found, "tokens": translated[row]}
        print(row, rows[row])
    record = {"batch_tokens": RIVALS.batch_tokens, "batches": BATCHES, "hardware": hardware(), "rows": rows}
    (RESULTS / "rivals").mkdir(parents=True, exist_ok=True)
    write_json(RESULTS / "rivals" / "seconds.json", record)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
