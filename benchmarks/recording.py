"""Cost of recording attention maps: BERT base, 16 x 128 tokens, forward, in turn and in one process.

    python -m benchmarks recording [--repeats 9] [--threads 2] [--out FILE.json]

Recording one head of one layer, every map, and every map with the outputs of all heads, are compared with the model
without recording (fused kernel) and with a model that computes every map anyway (`explicit`). Each ratio is of two
consecutive runs.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from benchmarks.output import command
from manyheads.core.attention import Attention
from manyheads.core.recording import record
from manyheads.core.runtime import ComputeConfig, prepare
from manyheads.models.bert import Bert
from manyheads.models.presets import preset
from manyheads.training.record import hardware

BATCH, TOKENS = 16, 128


@contextmanager
def explicit(model: Bert) -> Iterator[None]:
    """Every attention of the model computes its whole map."""
    attentions = [module for module in model.modules() if isinstance(module, Attention)]
    for attention in attentions:
        attention.explicit = True
    try:
        yield
    finally:
        for attention in attentions:
            attention.explicit = None


@contextmanager
def both(model: Bert) -> Iterator[None]:
    """Record all maps, and all outputs of heads before the output projection."""
    with record(model), record(model, of="head_outputs"):
        yield


def measure(repeats: int, threads: int | None, name: str = "base-uncased") -> dict[str, Any]:
    compute = prepare(threads=threads)
    with compute.settings():
        return _measured(compute, repeats, name)


def _measured(compute: ComputeConfig, repeats: int, name: str) -> dict[str, Any]:
    torch.manual_seed(1)
    config = preset(name, "bert")
    model = Bert(config).eval()
    tokens = torch.randint(1, config.vocab, (BATCH, TOKENS))

    def ways() -> dict[str, AbstractContextManager[Any]]:
        return {
            "nothing": nullcontext(),
            "one head": record(model, layers=[config.layers // 2], heads=[0]),
            "explicit": explicit(model),
            "everything": record(model),
            "everything and head outputs": both(model),
        }

    seconds: dict[str, list[float]] = {way: [] for way in ways()}
    with torch.inference_mode():
        for repeat in range(repeats + 1):  # the first is a warm-up
            for way, context in ways().items():
                with context:
                    began = time.perf_counter()
                    model(tokens)
                    took = time.perf_counter() - began
                if repeat:
                    seconds[way].append(took)
    return {
        "bench": "recording", "model": f"bert/{name}", "batch": BATCH, "tokens": TOKENS,
        "seconds": {way: round(statistics.median(taken), 3) for way, taken in seconds.items()},
        "cost": {
            "one head against nothing": _ratio(seconds["one head"], seconds["nothing"]),
            "everything against explicit": _ratio(seconds["everything"], seconds["explicit"]),
            "everything against nothing": _ratio(seconds["everything"], seconds["nothing"]),
            "everything and head outputs against nothing": _ratio(
                seconds["everything and head outputs"], seconds["nothing"]
            ),
        },
        "repeats": repeats, "hardware": hardware(), "route": compute.describe(),
    }  # fmt: skip


def _ratio(these: list[float], those: list[float]) -> dict[str, float]:
    ratios = [one / other for one, other in zip(these, those, strict=True)]
    return {"median": round(statistics.median(ratios), 3), "min": round(min(ratios), 3), "max": round(max(ratios), 3)}


if __name__ == "__main__":
    command(__doc__, 9, measure)
