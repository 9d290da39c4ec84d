"""Time of attention over the number of heads: `chrt -f 5 python -m lab.heads_cost [--quick] [--out FILE]`.

The width of the layer is constant, and so are its parameters and the FLOPs of its matrix products. Each number of heads
computes the forward pass and a training step (forward, backward, Adam) on one thread in float32, with explicit
products and with PyTorch's fused kernel. The rounds of all numbers of heads alternate, and each time is divided by the
time of one head in the same round. The record is `bench/heads.json`; the table and the picture are for
docs/measured/complexity.md. With `--quick`, a small layer is measured in two rounds, and the record is only printed.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from lab.complexity_page import markdown, where
from lab.records import RESULTS, records
from manyheads.analysis.drawing import HUES, new_figure, save
from manyheads.core.attention import Attention
from manyheads.core.runtime import prepare
from manyheads.files import write_json
from manyheads.training.record import commit, hardware

RECORD = RESULTS / "bench" / "heads.json"
FIGURE = Path("docs/images/heads-cost.png")
BATCH = 4  # texts in a batch
FORWARD, TRAINING = "forward", "training step"
KERNELS = {"explicit": True, "fused": False}  # values of `Attention.explicit`


@dataclass(frozen=True)
class Plan:
    """Sizes that are measured, and the number of rounds after a first one that does not count."""

    widths: tuple[int, ...] = (256, 512)
    tokens: tuple[int, ...] = (128, 512)
    heads: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    rounds: int = 15


QUICK = Plan((32,), (8,), (1, 2, 4), 2)


@dataclass
class Layer:
    """Attention layer with one number of heads, whose forward pass or training step is timed."""

    width: int
    tokens: int
    heads: int
    explicit: bool
    seconds: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        torch.manual_seed(1)
        self.attention = Attention(self.width, self.heads)
        self.attention.explicit = self.explicit
        self.optimizer = torch.optim.Adam(self.attention.parameters(), 1e-5)
        self.x = torch.randn(BATCH, self.tokens, self.width, requires_grad=True)

    def forward(self) -> None:
        with torch.no_grad():
            self.attention(self.x)

    def train(self) -> None:
        self.attention(self.x).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.x.grad = None

    def time(self, run: Callable[[], None]) -> None:
        begun = time.perf_counter()
        run()
        self.seconds.append(time.perf_counter() - begun)


def measure(plan: Plan) -> dict[str, Any]:
    """Return the record: a curve over the number of heads for each width, length, kernel and part."""
    curves = []
    with prepare(threads=1).settings():
        for width in plan.widths:
            for tokens in plan.tokens:
                for kernel in KERNELS:
                    curves += [_curve(plan, width, tokens, kernel, part) for part in (FORWARD, TRAINING)]
                    print(*curves[-2:], sep="\n", flush=True)
        machine = hardware()
    return {
        "bench": "heads", "device": "cpu", "batch": BATCH, "rounds": plan.rounds, "curves": curves,
        "hardware": machine, "commit": commit(),
    }  # fmt: skip


def _curve(plan: Plan, width: int, tokens: int, kernel: str, part: str) -> dict[str, Any]:
    layers = [Layer(width, tokens, heads, KERNELS[kernel]) for heads in plan.heads]
    for _ in range(plan.rounds + 1):
        for layer in layers:
            layer.time(layer.forward if part == FORWARD else layer.train)
    rounds = [layer.seconds[1:] for layer in layers]
    ratios = [sorted(a / b for a, b in zip(seconds, rounds[0], strict=True)) for seconds in rounds]
    return {
        "width": width, "tokens": tokens, "kernel": kernel, "part": part, "heads": [*plan.heads],
        "seconds": [float(f"{median(seconds):.4g}") for seconds in rounds],
        "ratio": [round(median(found), 3) for found in ratios],
        "quartiles": [[round(q, 3) for q in quantiles(found, n=4)[::2]] for found in ratios],
        "flops": [flops(width, tokens, heads) for heads in plan.heads],
    }  # fmt: skip


def flops(width: int, tokens: int, heads: int) -> int:
    """Return the FLOPs of a forward pass over one text: 2 for each multiply-add of a matrix product."""
    counter = FlopCounterMode(display=False)
    with torch.device("meta"), sdpa_kernel(SDPBackend.MATH), torch.no_grad(), counter:
        Attention(width, heads)(torch.empty(1, tokens, width))
    return counter.get_total_flops()


def kept() -> dict[str, Any] | None:
    return next((record for record in records("bench") if record.get("bench") == "heads"), None)


def section() -> str:
    """Return the section of the page: the time relative to one head, and the picture; empty without a record."""
    record = kept()
    if record is None:
        return ""
    heads = record["curves"][0]["heads"]
    rows = [["width", "tokens", "kernel", "measured", "GFLOPs", *(f"{h} heads" if h > 1 else "1 head" for h in heads)],
            ["--:", "--:", "---", "---", "--:", *["--:"] * len(heads)]]  # fmt: skip
    for curve in record["curves"]:
        counts = dict.fromkeys(f"{count * record['batch'] / 1e9:.2f}" for count in curve["flops"])
        rows.append([
            str(curve["width"]), str(curve["tokens"]), curve["kernel"], curve["part"], " to ".join(counts),
            *(f"{ratio:.2f}" for ratio in curve["ratio"]),
        ])  # fmt: skip
    theory = (
        "A layer of constant width has the same parameters and matrix products for any number of heads. The number of "
        "attention weights grows with the number of heads, and each weight needs an exponential."
    )
    about = (
        f"Time relative to one head, median of {record['rounds']} rounds, batch of {record['batch']} texts, "
        f"{where(record)}. The FLOPs are those of a forward pass."
    )
    picture = f"![Time over the number of heads](../images/{FIGURE.name})"
    return "\n\n".join(["## Number of heads", theory, picture, markdown(rows), about])


def draw(record: dict[str, Any], out: Path) -> Path:
    """Draw the time over the number of heads, relative to one head: a panel for each kernel, for the largest width.

    Bands are the middle half of the rounds.
    """
    width = max(curve["width"] for curve in record["curves"])
    figure = new_figure(8, 3.2)
    axes = figure.subplots(1, len(KERNELS), sharey=True)
    for axis, kernel in zip(axes, KERNELS, strict=True):
        shown = [curve for curve in record["curves"] if (curve["width"], curve["kernel"]) == (width, kernel)]
        for color, curve in zip(HUES, shown, strict=False):
            label = f"{curve['part']}, {curve['tokens']} tokens"
            low, high = zip(*curve["quartiles"], strict=True)
            axis.plot(curve["heads"], curve["ratio"], color=color, marker=".", label=label)
            axis.fill_between(curve["heads"], low, high, color=color, alpha=0.15, linewidth=0)
        axis.set(xscale="log", xlabel="heads", title=f"{kernel} kernel, width {width}")
        axis.set_xticks(shown[0]["heads"], [str(count) for count in shown[0]["heads"]])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("time relative to one head")
    axes[0].set_ylim(bottom=0)
    axes[0].legend(frameon=False, fontsize=8)
    save(figure, out)
    return out


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lab.heads_cost", description="Time attention over its heads.")
    parser.add_argument("--quick", action="store_true", help="measure a small layer, and write no file but --out")
    parser.add_argument("--out", type=Path, help=f"file of the record (default: {RECORD.name} of the kept records)")
    options = parser.parse_args(arguments)
    record = measure(QUICK if options.quick else Plan())
    out = options.out or (None if options.quick else RECORD)
    if out is not None:
        write_json(out, record)
        if out == RECORD:
            draw(record, FIGURE)
    return 0


PARTS = (section,)

if __name__ == "__main__":
    raise SystemExit(main())
