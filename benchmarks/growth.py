"""Growth of time and memory: of one layer over the length of a text, and of decoders over length, batch, vocabulary and
beam, each with its exponent.

Layers (Vaswani 2017, table 1) of width 64, on one text of 64 to 4,096 positions, forward, and forward and backward:

    rnn, lstm         one layer
    convolution       kernel size 3
    attention         4 heads, global
    local attention   4 heads; every position of an image attends to 7 x 7 positions (Ramachandran 2019)

Decoders: a GPT (4 layers, width 256, 10,000 words) that reads a prompt and generates a token, and a translator
(JoeyNMT's size) that generates 16 tokens with several beams. All models run in float32 without compiled kernels.

Memory is the maximum of live tensors (`memory.Alive`) without weights, which are included when the vocabulary grows.
An exponent is the slope of a line through the logarithms of the upper half of a curve. In the lower half, constant
costs dominate.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import log
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from benchmarks.decode_translation import Translating
from benchmarks.memory import Alive
from benchmarks.ours import seeded
from manyheads.core.attention import Attention
from manyheads.core.recurrent import LSTM
from manyheads.core.runtime import prepare
from manyheads.generation import beam_search
from manyheads.models.local_attention import LocalAttention
from manyheads.training.record import commit, hardware
from papers.reach.receptive_field import Along

FORWARD, BACKWARD = "layer, forward", "layer, forward and backward"
LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096)
BATCHES = (1, 2, 4, 8, 16, 32, 64)
VOCABULARIES = (1000, 4000, 16_000, 64_000, 256_000)
BEAMS = (1, 2, 4, 8, 16, 32)
WIDTH, HEADS, KERNEL, WINDOW = 64, 4, 3, 7
DECODER = {"vocab": 10_000, "end": None, "width": 256, "layers": 4, "heads": 4}  # the GPT
PROMPT = 256  # tokens before the one that is written, where these do not grow
WRITTEN = 16  # tokens of a translation
PIECE = 64  # tokens that fill a cache at once
TURN = 1.0  # seconds that a point is measured for, at least
TIMES = 3  # runs of a point, at least

Started = Callable[[], Callable[[], object]]  # makes what a run finds there, and gives the run


class Curve(NamedTuple):
    """One quantity that grows. `start` gives, for a value of it, the run that is measured and the bytes of weights."""

    part: str
    name: str
    against: str  # what grows
    at: Sequence[int]
    start: Callable[[int], tuple[Started, int]]


class Sequential(nn.Module):
    """A recurrent layer: x (B, T, D) -> its states (B, T, D)."""

    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        states: Tensor = self.layer(x)[0]
        return states


class Pixels(nn.Module):
    """A layer over images, fed x (B, T, D) as an image of T pixels, as square as it can be of powers of two."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        rows = 2 ** ((x.shape[1].bit_length() - 1) // 2)
        image = x.transpose(1, 2).unflatten(2, (rows, -1))  # (B, D, Y, X)
        mixed: Tensor = self.layer(image)
        return mixed.flatten(2).transpose(1, 2)


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "rnn": lambda: Sequential(nn.RNN(WIDTH, WIDTH, batch_first=True)),
    "lstm": lambda: Sequential(LSTM(WIDTH, WIDTH, batch_first=True)),
    "convolution": lambda: Along(nn.Conv1d(WIDTH, WIDTH, KERNEL, padding="same")),
    "attention": lambda: Attention(WIDTH, HEADS),
    "local attention": lambda: Pixels(LocalAttention(WIDTH, WIDTH, HEADS, WINDOW)),
}


def curves(device: str) -> Iterator[Curve]:
    """All that is measured; each is started on that device."""
    for kind in LAYERS:
        for name, backward in ((FORWARD, False), (BACKWARD, True)):
            yield Curve(name, kind, "length", LENGTHS, partial(_layer, kind, backward, device))
    yield Curve("decoder", "reading a prompt", "length", LENGTHS, partial(_reading, device))
    yield Curve("decoder", "the next token", "length", LENGTHS, lambda n: _writing(device, length=n))
    yield Curve("decoder", "the next token", "batch", BATCHES, lambda n: _writing(device, batch=n))
    yield Curve("decoder", "the next token", "vocabulary", VOCABULARIES, lambda n: _writing(device, vocabulary=n))
    yield Curve("decoder", f"a translation of {WRITTEN} tokens", "beam", BEAMS,
                partial(_translating, device))  # fmt: skip


def growth(threads: int | None = None) -> dict[str, Any]:
    """Measure all curves on a GPU if present, and return one document. `threads` defaults to PyTorch's number."""
    compute = prepare(threads=threads)
    with compute.settings():
        figures = [_measured(curve) for curve in curves(compute.device)]
        machine = hardware()
    return {"bench": ["growth"], "device": compute.device, "curves": figures, "hardware": machine, "commit": commit()}


def _measured(curve: Curve) -> dict[str, Any]:
    at, seconds, spread, sizes = list(curve.at), [], [], []
    for n in at:
        start, weights = curve.start(n)
        with Alive() as alive:
            run = start()
            alive.most = alive.now
            run()
        sizes.append(alive.most + (weights if curve.against == "vocabulary" else 0))
        median, least, most = _seconds(run)
        seconds.append(median)
        spread.append([least, most])
        print(
            f"{curve.part}, {curve.name}, {curve.against} {n:,}: {median:.2g} s, {sizes[-1] / 1e6:,.1f} MB",
            file=sys.stderr,
        )
    return {
        "part": curve.part, "name": curve.name, "against": curve.against, "at": at, "seconds": seconds,
        "spread": spread, "bytes": sizes, "seconds_exponent": exponent(at, seconds),
        "bytes_exponent": exponent(at, sizes),
    }  # fmt: skip


def exponent(at: Sequence[float], values: Sequence[float]) -> float | None:
    """b of values = a * at^b, by least squares on the logarithms of the upper half; None for fewer than two points."""
    upper = len(at) // 2
    x, y = ([log(value) for value in side[upper:]] for side in (at, values))
    if len(x) < 2:
        return None
    slope, _ = statistics.linear_regression(x, y)
    return round(slope, 3)


def _seconds(run: Callable[[], object]) -> tuple[float, float, float]:
    """Of one run: median, least, most."""
    wait = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    run()
    wait()
    took: list[float] = []
    began = time.perf_counter()
    while len(took) < TIMES or time.perf_counter() - began < TURN:
        start = time.perf_counter()
        run()
        wait()
        took.append(time.perf_counter() - start)
    return tuple(float(f"{t:.4g}") for t in (statistics.median(took), min(took), max(took)))  # type: ignore[return-value]


def _layer(kind: str, backward: bool, device: str, length: int) -> tuple[Started, int]:
    torch.manual_seed(0)
    layer = LAYERS[kind]().to(device)

    def start() -> Callable[[], object]:
        x = torch.randn(1, length, WIDTH, device=device, requires_grad=backward)

        def run() -> object:
            with torch.set_grad_enabled(backward):
                y = layer(x)
                if backward:
                    y.sum().backward()
                    layer.zero_grad()
                    x.grad = None
            return y

        return run

    return start, _weights(layer)


def _reading(device: str, length: int) -> tuple[Started, int]:
    model = seeded("gpt2/nano", **DECODER, max_positions=length).to(device)

    def start() -> Callable[[], object]:
        tokens = torch.ones(1, length, dtype=torch.long, device=device)
        last = torch.tensor([length - 1], device=device)

        @torch.no_grad()
        def run() -> object:
            return model.step(tokens, model.start(1, length), last)

        return run

    return start, _weights(model)


def _writing(device: str, length: int = PROMPT, batch: int = 1, vocabulary: int | None = None) -> tuple[Started, int]:
    """One token behind `length` others, whose keys and values are there."""
    settings = DECODER if vocabulary is None else {**DECODER, "vocab": vocabulary}
    model = seeded("gpt2/nano", **settings, max_positions=length + 1).to(device)

    def start() -> Callable[[], object]:
        token = torch.ones(batch, 1, dtype=torch.long, device=device)
        cache = model.start(batch, length + 1)
        with torch.no_grad():
            for _ in range(0, length, PIECE):
                model.step(token.expand(-1, PIECE), cache, torch.zeros(batch, dtype=torch.long, device=device))

        @torch.no_grad()
        def run() -> object:
            logits = model.step(token, cache)
            cache.advance(-1)  # so that the next run finds the same
            return logits

        return run

    return start, _weights(model)


def _translating(device: str, beam: int) -> tuple[Started, int]:
    case = Translating(1, beam, source=32, target=WRITTEN, preset="transformer/small")
    model, source = case.model().to(device), case.inputs().to(device)
    c, limits = model.config, torch.tensor([WRITTEN - 1])

    def start() -> Callable[[], object]:
        def run() -> object:
            with torch.no_grad():
                cache = model.start(source, None, WRITTEN)
            return beam_search(model.step, cache, start=c.start, end=c.end, limits=limits, suppress=(c.pad,), beam=beam)

        return run

    return start, _weights(model)


def _weights(model: nn.Module) -> int:
    return sum(parameter.nbytes for parameter in model.parameters())
