"""Ponder cost during training."""

import torch
from torch import nn

from manyheads.models.recurrence import ponder_cost
from tests.unit.models.test_universal import LENGTHS, sentences, small


def test_the_ponder_cost_falls_when_its_weight_rises() -> None:
    costs = []
    for weight in (0.0, 0.1, 1.0):
        model = small(halting="basic", steps=6, ponder=weight).train()
        optimizer = torch.optim.Adam(model.parameters(), 1e-2)
        source, target = sentences()
        for _ in range(30):
            hidden, thoughts = model.forward_with_halting(source, LENGTHS, target)
            loss = nn.functional.cross_entropy(model.project(hidden).flatten(0, 1), target.flatten())
            optimizer.zero_grad()
            (loss + ponder_cost(model, thoughts)).backward()
            optimizer.step()
        costs.append(sum(float(ponder.cost.detach()) for ponder in thoughts.values()))
    assert costs[0] > costs[1] > costs[2]
