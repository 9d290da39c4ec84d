"""Induction heads during a training.

python -m papers.induction RUN --data FILE --out induction.png

RUN is a run of a language model that was trained with `training.keep_steps`. For each kept model, the script measures
the highest score of each detector in each layer, and the in-context score: the mean loss of the last eighth of the
positions minus the mean loss of an early eighth (Olsson 2022: the loss of token 500 minus the loss of token 50).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

import torch
import torch.nn.functional as F
from torch import Tensor

import manyheads
from manyheads.analysis.drawing import HUES, save
from manyheads.errors import UserError, extra
from manyheads.models.gpt import GPT
from manyheads.tasks.heads.detection import detect_heads
from papers.command import about, run

WINDOWS = 400  # number of windows of the text whose losses are averaged


class Point(TypedDict):
    """Measures of a kept model: the highest score of each layer, by detector, and the in-context score in nats."""

    step: int
    scores: dict[str, list[float]]
    in_context: float


def step_of(path: Path) -> int:
    """Return the step of a kept model."""
    return int(path.name.removeprefix("step-"))


def measure(path: Path, text: str) -> Point:
    """Return the measures of one kept model, and the in-context score on a text."""
    predictor = manyheads.load(path)
    scores = detect_heads(predictor)
    block = predictor.model.max_positions
    ids = predictor.tokenizer.encode(text, add_special_tokens=False).ids[: WINDOWS * (block + 1)]
    windows = torch.tensor(ids[: len(ids) // (block + 1) * (block + 1)]).view(-1, block + 1)
    losses = token_losses(predictor.model, windows)
    in_context = losses[-(block // 8) :].mean() - losses[block // 16 : block // 16 + block // 8].mean()
    best = {panel.title: panel.values.max(1).tolist() for panel in scores.panels}
    return {"step": step_of(path), "scores": best, "in_context": float(in_context)}


@torch.no_grad()
def token_losses(model: GPT, windows: Tensor) -> Tensor:
    """Return the mean loss at each position (T,) for windows of T + 1 tokens (N, T + 1)."""
    logits = model(windows[:, :-1])
    return (
        F.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten(), reduction="none").view(len(windows), -1).mean(0)
    )


def draw(points: Sequence[Point], out: Path) -> None:
    """Draw the scores of the layers, and the in-context score, over the steps."""
    with extra("analysis", "a picture"):
        from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 5), layout="constrained")
    upper, lower = figure.subplots(2, sharex=True, height_ratios=(2, 1))
    steps = [point["step"] for point in points]
    lines = (("induction", 1), ("previous token", 0), ("duplicate token", 0))
    for (name, layer), color in zip(lines, HUES, strict=False):
        values = [point["scores"][name][layer] for point in points]
        upper.plot(steps, values, color=color, label=f"{name}, layer {layer}")
    lower.plot(steps, [point["in_context"] for point in points], color=HUES[3])
    upper.set(ylabel="highest score of a head", ylim=(0, None))
    lower.set(xlabel="steps of training", ylabel="in-context score (nats)")
    upper.legend()
    for axis in (upper, lower):
        axis.grid(alpha=0.3)
    save(figure, out)


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m papers.induction", description=about(__doc__))
    parser.add_argument("run", type=Path, metavar="RUN", help="run with training.keep_steps")
    parser.add_argument("--data", type=Path, required=True, help="text for the in-context score, not trained on")
    parser.add_argument("--out", type=Path, default=Path("induction.png"), help="picture (default: induction.png)")
    parser.add_argument("--json", type=Path, help="also write the measures")
    options = parser.parse_args(arguments)
    kept = sorted(options.run.glob("kept/step-*"), key=step_of)
    if not kept:
        raise UserError(f"{options.run}: found no kept/step-N: train with training.keep_steps=N")
    text = options.data.read_text(encoding="utf-8")
    points = [measure(path, text) for path in kept]
    draw(points, options.out)
    if options.json is not None:
        options.json.write_text(json.dumps(points, indent=1) + "\n", encoding="utf-8")
    print(options.out)


if __name__ == "__main__":
    raise SystemExit(run(main))
