"""Patching finds the heads of a trained model that cause its predictions: ablating them destroys the behavior."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from manyheads.analysis.maps.sides import Side
from manyheads.analysis.patching import patch
from manyheads.analysis.readout import Names, Readout
from manyheads.core.editing import edit
from manyheads.models.gpt import GPT
from manyheads.models.presets import preset

PEOPLE, AND, MET, GAVE, TO = 12, 12, 13, 14, 15  # tokens 0 to 11 are names


def sentences(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Sentences "A and B met B gave to" or "A and B met A gave to" (N, 7), and the name that occurs once (N,)."""
    first, second = torch.rand(count, PEOPLE, generator=generator).topk(2).indices.unbind(1)
    subject = torch.where(torch.rand(count, generator=generator) < 0.5, first, second)
    words = [torch.full((count,), word) for word in (AND, MET, GAVE, TO)]
    return torch.stack([first, words[0], second, words[1], subject, *words[2:]], 1), first + second - subject


@pytest.fixture(scope="module")
def model() -> GPT:
    """A GPT of three layers with four heads that names the indirect object, after a training of some seconds."""
    torch.manual_seed(0)
    model = GPT(preset("gpt2/nano", vocab=16, width=64, layers=3, max_positions=8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    generator = torch.Generator().manual_seed(0)
    for _ in range(150):
        tokens, objects = sentences(64, generator)
        optimizer.zero_grad()
        F.cross_entropy(model(tokens)[:, -1], objects).backward()
        optimizer.step()
    return model.eval()


def effects(model: GPT) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Mean effect of each head over four pairs of sentences that differ in their subject, (layers, heads)."""

    def readout(ids: list[int]) -> Readout:
        side = Side.positions(len(ids))
        return Readout(model, (torch.tensor([ids]),), lambda logits: logits[:, -1], Names(str, int), 6, side, "gpt", "")

    found = []
    for a, b in ((0, 1), (2, 3), (4, 5), (6, 7)):
        clean, corrupt = ([a, AND, b, MET, subject, GAVE, TO] for subject in (a, b))
        patched = patch(readout(clean), readout(corrupt), target=str(b), against=str(a))
        assert patched.clean > 2 > -2 > patched.corrupt
        found.append(patched["heads"])
    return np.mean(found, 0)


def test_ablating_the_heads_that_patching_finds_destroys_the_behavior(model: GPT) -> None:
    tokens, objects = sentences(1000, torch.Generator().manual_seed(1))

    def accuracy(heads: list[tuple[int, int]]) -> float:
        """Accuracy with the outputs of some heads replaced by their means over the sentences."""
        with torch.no_grad(), edit(model) as change:
            for layer, head in heads:
                change.output(layer, [head], lambda output: output.mean(0, keepdim=True))
            return float((model(tokens)[:, -1].argmax(-1) == objects).float().mean())

    values = effects(model)
    order = [divmod(int(index), values.shape[1]) for index in np.argsort(-values, axis=None)]
    generator = np.random.default_rng(0)
    others = [[order[4:][at] for at in generator.choice(8, 4, replace=False)] for _ in range(10)]
    assert accuracy([]) > 0.99
    assert accuracy(order[:4]) < 0.6  # To guess one of the two names gives 0.5.
    assert np.mean([accuracy(heads) for heads in others]) > 0.9
