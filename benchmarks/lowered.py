"""Lowered models next to the same models in plain PyTorch, at the same precision: lowering must never cost speed.

The two run in separate processes, in turns; a ratio is the median of the ratios of nine pairs. 8 bits exist only in
lowered models, which are compared with plain PyTorch in float32. The error is the distance from plain PyTorch in
float32: of arrays the root mean square relative to their own, of translations the share of other tokens.
"""

from __future__ import annotations

import statistics
import sys
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from benchmarks import decode_gpt2, decode_translation, encode_bert, encode_vit, ours
from benchmarks.decode_gpt2 import Decoding
from benchmarks.decode_translation import Translating, tokens_apart
from benchmarks.encode_bert import Encoding
from benchmarks.encode_vit import Seeing
from benchmarks.machine import features, kind, today
from benchmarks.work import Prepared, Side, relative_error, three_digits
from benchmarks.workers import workers
from manyheads.training.record import commit, hardware

PAIRS = 9
TURN = 0.3  # seconds
LEAST = 0.97  # of the speed of plain PyTorch: less is slower than the noise of a measurement


@dataclass(frozen=True)
class Classifying:
    """So many texts of random words, all of one length, for a classifier whose attention has a bias."""

    texts: int
    length: int
    preset: str = "text-classifier/textbook"


def classify(case: Classifying, setting: str, threads: int) -> Prepared:
    model = ours.seeded(case.preset)
    ids = torch.randint(1, model.config.vocab, (case.texts, case.length), generator=ours.generator())
    lengths = torch.full((case.texts,), case.length)
    model = ours.compiled(model, setting, threads)

    def look() -> Tensor:
        with torch.inference_mode(), model.compute.autocast():
            logits: Tensor = model(ids, lengths)
            return logits

    def run() -> None:
        look()

    return Prepared(run, look().float().numpy())


# by name: a function that prepares our side, and its sizes
CASES: dict[str, tuple[Any, Any]] = {
    "bert/base-uncased, 4 x 128": (encode_bert.ours, Encoding(4, 128, 128)),
    "bert/base-uncased, 16 of 8 to 128": (encode_bert.ours, Encoding(16, 8, 128)),
    "bert/tiny, 4 x 16": (encode_bert.ours, Encoding(4, 16, 16, preset="bert/tiny")),
    "gpt2/124m, batch 1": (decode_gpt2.ours, Decoding(1, 32, 8)),
    "gpt2/nano, batch 2": (decode_gpt2.ours, Decoding(2, 8, 8, "gpt2/nano")),
    "vit/b16, 2 images": (encode_vit.ours, Seeing(2)),
    "vit/7-28, 8 images": (encode_vit.ours, Seeing(8, "vit/7-28")),
    "transformer/base, 4 sentences, greedy": (decode_translation.ours, Translating(4, 1, 20, 10)),
    "transformer/base, 1 sentence, beam 4": (decode_translation.ours, Translating(1, 4, 20, 10)),
    "transformer/tiny, 2 sentences, greedy": (
        decode_translation.ours, Translating(2, 1, 5, 6, 50, "transformer/tiny")
    ),
    "text-classifier/textbook, 32 x 100": (classify, Classifying(32, 100)),
}  # fmt: skip


def lowered(
    threads: int | None = None, repeats: int | None = None, cases: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Measure every case at every precision, and return one document with a row for each.

    repeats  pairs of runs; default: nine
    """
    threads = threads or torch.get_num_threads()
    with workers({"plain": Side({}, _prepare), "lowered": Side({}, _prepare)}, threads) as sides:
        rows = [row for name, case in (cases or CASES).items() for row in _rows(name, case, sides, repeats or PAIRS)]
    return {
        "bench": ["lowered"], "rows": rows, "pairs": repeats or PAIRS, "kind": kind(), "date": today(),
        "hardware": {**hardware(), "threads": threads, "features": features()}, "commit": commit(),
    }  # fmt: skip


def slower(rows: list[dict[str, Any]]) -> list[str]:
    """Return the cases in which a lowered model is slower than plain PyTorch."""
    return [f"{row['case']}, {row['precision']} ({row['ratio']:.2f})" for row in rows if row["ratio"] < LEAST]


def _rows(name: str, case: Any, sides: Any, pairs: int) -> list[dict[str, Any]]:
    rows, reference = [], sides["plain"].prepare(case, ours.REFERENCE)[0]
    for precision in ours.precisions():
        other = "float32" if precision == "int8" else precision
        plain = f"{ours.PLAIN} {other}"
        if plain != ours.REFERENCE:
            sides["plain"].prepare(case, plain)
        output, route = sides["lowered"].prepare(case, precision)
        times = [(sides["plain"].seconds(plain, TURN), sides["lowered"].seconds(precision, TURN)) for _ in range(pairs)]
        error = (tokens_apart if isinstance(output, list) else relative_error)(reference, output)
        rows.append({
            "case": name, "precision": precision, "route": route, "against": f"PyTorch {other}",
            "plain_seconds": statistics.median(seconds for seconds, _ in times),
            "lowered_seconds": statistics.median(seconds for _, seconds in times),
            "ratio": round(statistics.median(before / after for before, after in times), 3), "error": error,
        })  # fmt: skip
        print(f"{name}, {precision}: {three_digits(rows[-1]['ratio'])} ({route})", file=sys.stderr, flush=True)
    for side in sides.values():
        side.forget()
    return rows


def _prepare(case: Any, setting: str, threads: int) -> Prepared:
    """Prepare a case. The output is a pair: the output of the model, and the route that it runs on."""
    prepare, sizes = case
    ours.routes.clear()
    prepared: Prepared = prepare(sizes, setting, threads)
    return replace(prepared, output=(prepared.output, ours.routes[-1]))
