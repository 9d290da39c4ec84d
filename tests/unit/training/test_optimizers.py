"""BERT's optimizer and SGD compared with their formulas in numpy, and RMSprop with values computed by Keras."""

from typing import Any, get_args, get_type_hints

import numpy as np
import pytest
import torch
from torch import nn

from manyheads.models.presets import preset
from manyheads.models.vit import ViT
from manyheads.training.config import TrainingConfig
from manyheads.training.optimizers import OPTIMIZERS, BertAdam, RMSprop, optimizer_for

PAPER = {"optimizer": "bert_adam", "betas": (0.9, 0.999), "eps": 1e-6, "weight_decay": 0.01}

KERAS = {"optimizer": "rmsprop", "eps": 1e-7}

SGD = {"optimizer": "sgd", "betas": (0.9, 0.999), "weight_decay": 0.01}


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.norm = nn.LayerNorm(2)
        self.table = nn.Embedding(4, 3)
        self.unused = nn.Parameter(torch.ones(2, 2))


def test_steps_follow_the_formula() -> None:
    torch.manual_seed(0)
    model = Small().double()
    expected = {name: p.detach().numpy().copy() for name, p in model.named_parameters()}
    moments = {name: (np.zeros_like(p), np.zeros_like(p)) for name, p in expected.items()}
    made = optimizer_for(model, TrainingConfig(steps=9, schedule="constant", learning_rate=1e-2, **PAPER))  # type: ignore[arg-type]
    assert isinstance(made, BertAdam)
    for step in range(1, 8):
        for group in made.param_groups:
            group["lr"] = 0.01 * step
        loss = model.norm(model.layer(model.table(torch.tensor([0, 1, 1])))).pow(3).sum()
        loss.backward()
        for name, parameter in model.named_parameters():
            if parameter.grad is None:
                continue
            gradient = parameter.grad.numpy()
            m, v = moments[name]
            m, v = 0.9 * m + 0.1 * gradient, 0.999 * v + 0.001 * gradient**2
            moments[name] = m, v
            update = m / (np.sqrt(v) + 1e-6)
            if name in ("layer.weight", "table.weight"):  # not biases and norms
                update += 0.01 * expected[name]
            expected[name] = expected[name] - 0.01 * step * update
        made.step()
        made.zero_grad()
    for name, parameter in model.named_parameters():
        np.testing.assert_allclose(parameter.detach().numpy(), expected[name], rtol=0, atol=1e-12, err_msg=name)
    assert torch.equal(model.unused, torch.ones(2, 2).double())


def test_bert_adam_has_no_bias_correction() -> None:
    """Adam's first step has the length of the learning rate, this one 0.1 / sqrt(0.001) = 3.16 times it."""
    lengths = {}
    for name in ("adamw", "bert_adam"):
        model = nn.Linear(1, 1, bias=False)
        before = model.weight.item()
        settings = {**PAPER, "optimizer": name, "weight_decay": 0.0, "eps": 1e-12}
        made = optimizer_for(model, TrainingConfig(steps=1, schedule="constant", **settings))  # type: ignore[arg-type]
        for group in made.param_groups:
            group["lr"] = 1e-3
        model(torch.ones(1, 1)).sum().backward()
        made.step()
        lengths[name] = abs(model.weight.item() - before)
    assert lengths["adamw"] == pytest.approx(1e-3, rel=1e-3)
    assert lengths["bert_adam"] == pytest.approx(1e-3 * 0.1 / 0.001**0.5, rel=1e-3)


def test_sgd_follows_nesterovs_formula() -> None:
    torch.manual_seed(0)
    model = Small().double()
    expected = {name: p.detach().numpy().copy() for name, p in model.named_parameters()}
    velocity = {name: np.zeros_like(p) for name, p in expected.items()}
    made = optimizer_for(model, TrainingConfig(steps=9, schedule="constant", **SGD))  # type: ignore[arg-type]
    for step in range(1, 6):
        for group in made.param_groups:
            group["lr"] = 0.01 * step
        model.norm(model.layer(model.table(torch.tensor([0, 1, 1])))).pow(3).sum().backward()
        for name, parameter in model.named_parameters():
            if parameter.grad is None:
                continue
            gradient = parameter.grad.numpy() + (0.01 * expected[name] if parameter.ndim > 1 else 0.0)
            velocity[name] = 0.9 * velocity[name] + gradient
            expected[name] = expected[name] - 0.01 * step * (gradient + 0.9 * velocity[name])
        made.step()
        made.zero_grad()
    for name, parameter in model.named_parameters():
        np.testing.assert_allclose(parameter.detach().numpy(), expected[name], rtol=0, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("way", [{}, {"optimizer": "adamw"}, PAPER, SGD, KERAS])
def test_a_parameter_may_start_training_later(way: dict[str, Any]) -> None:
    model = Small()
    made = optimizer_for(model, TrainingConfig(steps=9, schedule="constant", **way))
    for late in (False, False, True):
        made.zero_grad()
        (model.layer.bias.sum() + (model.unused.sum() if late else 0)).backward()
        for group in made.param_groups:
            group["lr"] = 0.1
        made.step()
    assert bool((model.unused < 1).all())


def test_parameters_named_by_the_model_are_not_decayed() -> None:
    model = ViT(preset("vit/2-8", labels=("a", "b")))
    config = TrainingConfig(steps=1, optimizer="adamw", schedule="constant", weight_decay=0.1)
    undecayed = {id(p) for g in optimizer_for(model, config).param_groups if not g["weight_decay"] for p in g["params"]}
    names = {name for name, parameter in model.named_parameters() if id(parameter) in undecayed}
    assert {"positions.table", "class_token", "head.bias"} < names
    assert "head.weight" not in names


def test_rmsprop_equals_keras() -> None:
    """keras 3.15, optimizers.get("rmsprop") in float64: five steps with growing gradients, large, small, tiny and none.

    PyTorch's own, even with Keras's numbers, moves the second and third much further.
    """
    model = nn.Linear(2, 2, bias=False).double()
    model.weight.data = torch.tensor([[0.5, -1.0], [2.0, 1e-3]], dtype=torch.float64)
    made = optimizer_for(model, TrainingConfig(steps=5, schedule="constant", learning_rate=1e-3, **KERAS))  # type: ignore[arg-type]
    assert isinstance(made, RMSprop)
    made.param_groups[0]["lr"] = 1e-3
    for step in range(1, 6):
        model.weight.grad = torch.tensor([[1.0, -1e-4], [1e-6, 0.0]], dtype=torch.float64) * step
        made.step()
    expected = [[0.48677219463659677, -0.9957694015699335], [1.999952566488391, 0.001]]
    torch.testing.assert_close(model.weight.data, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-9)
    with pytest.raises(ValueError, match="rmsprop does not support weight_decay"):
        TrainingConfig(steps=1, schedule="constant", optimizer="rmsprop", weight_decay=0.1)


def test_each_optimizer_of_the_settings_is_in_the_table() -> None:
    named = get_type_hints(TrainingConfig)["optimizer"]
    assert set(OPTIMIZERS) == set(get_args(named))
