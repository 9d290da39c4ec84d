"""Optimizers for training. The learning rate is set before every step by the schedule."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import nn

from manyheads.core.interface import Model
from manyheads.errors import UserError
from manyheads.files import JsonObject
from manyheads.training.config import TrainingConfig
from manyheads.training.state import mesh_of
from manyheads.training.tuning import layer_rates


def optimizer_for(model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
    """Return the configured optimizer for the trainable parameters of a model.

    adam, adamw  PyTorch's fused kernels (Vaswani 2017: betas 0.9 and 0.98, eps 1e-9)
    bert_adam    AdamW without bias correction, as in BERT's code
    rmsprop      RMSprop as in Keras
    sgd          SGD with Nesterov momentum betas[0], for convolutional networks (He 2016: learning rate 0.1, momentum
                 0.9, weight decay 1e-4)

    Weight decay applies to matrices and embeddings. It does not apply to biases and norms (Devlin 2018, Radford 2018),
    nor to the parameters that the model lists in `undecayed`.
    """
    return OPTIMIZERS[config.optimizer].make(_groups(model, config), config)


def state_numbers(config: TrainingConfig) -> int:
    """Return the number of state values, such as moments, that the configured optimizer stores per trained weight."""
    return OPTIMIZERS[config.optimizer].state(config)


def _groups(model: nn.Module, config: TrainingConfig) -> list[JsonObject]:
    """Return the trainable parameters in groups that share a weight decay and a factor of the learning rate."""
    undecayed = {id(model.get_parameter(name)) for name in model.undecayed} if isinstance(model, Model) else set()
    rates = layer_rates(model, config.layer_decay) if config.layer_decay < 1 else {}
    groups: dict[tuple[float, float, object], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            decayed = parameter.ndim >= 2 and id(parameter) not in undecayed
            # PyTorch's fused kernels cannot mix parameters that are split over different meshes of ranks.
            key = rates.get(name, 1.0), config.weight_decay if decayed else 0.0, mesh_of(parameter)
            groups.setdefault(key, []).append(parameter)
    if not groups:
        raise UserError("the model has no trainable parameters")
    return [{"params": p, "rate": rate, "weight_decay": decay} for (rate, decay, _), p in groups.items()]


class BertAdam(torch.optim.Optimizer):
    """AdamW without bias correction of the moments (Devlin 2018, optimization.py of the original code).

        m = beta1 * m + (1 - beta1) * g        v = beta2 * v + (1 - beta2) * g^2
        p = p - lr * (m / (sqrt(v) + eps) + weight_decay * p)

    The moments start at zero, so the first step is (1 - beta1) / sqrt(1 - beta2) times the learning rate, which is
    larger than with Adam. Therefore training needs a warm-up. The paper uses betas 0.9 and 0.999, eps 1e-6,
    weight_decay 0.01 and clip 1.0.
    """

    def __init__(self, groups: Iterable[JsonObject], betas: tuple[float, float], eps: float) -> None:
        super().__init__(groups, {"lr": 0.0, "betas": betas, "eps": eps, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        assert closure is None
        for group in self.param_groups:
            (beta1, beta2), rate = group["betas"], group["lr"]
            for parameter in group["params"]:
                if (gradient := parameter.grad) is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
                mean = state["exp_avg"].lerp_(gradient, 1 - beta1)
                square = state["exp_avg_sq"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
                if group["weight_decay"]:
                    parameter.mul_(1 - rate * group["weight_decay"])
                parameter.addcdiv_(mean, square.sqrt().add_(group["eps"]), value=-rate)


class RMSprop(torch.optim.Optimizer):
    """RMSprop (Tieleman & Hinton 2012, lecture 6.5) as implemented in Keras 3.

        v = rho * v + (1 - rho) * g^2        p = p - lr * g / sqrt(v + eps)

    Defaults of Keras: learning rate 1e-3, rho 0.9, eps 1e-7. PyTorch's RMSprop uses rho 0.99 (its alpha) and eps 1e-8,
    and adds eps to the root, as Keras did before 2.11. The two versions differ for gradients below sqrt(eps) = 3e-4,
    such as the gradients of rare words. In this class such gradients lead to small steps; in PyTorch, the steps are as
    large as for other gradients.
    """

    def __init__(self, groups: Iterable[JsonObject], eps: float, rho: float = 0.9) -> None:
        super().__init__(groups, {"lr": 0.0, "rho": rho, "eps": eps})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        assert closure is None
        for group in self.param_groups:
            for parameter in group["params"]:
                if (gradient := parameter.grad) is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["square_avg"] = torch.zeros_like(parameter)
                square = state["square_avg"].mul_(group["rho"]).addcmul_(gradient, gradient, value=1 - group["rho"])
                parameter.addcdiv_(gradient, (square + group["eps"]).sqrt_(), value=-group["lr"])


def _adam(groups: list[JsonObject], config: TrainingConfig) -> torch.optim.Optimizer:
    return torch.optim.Adam(groups, betas=config.betas, eps=config.eps, fused=True)


def _adamw(groups: list[JsonObject], config: TrainingConfig) -> torch.optim.Optimizer:
    return torch.optim.AdamW(groups, betas=config.betas, eps=config.eps, fused=True)


def _sgd(groups: list[JsonObject], config: TrainingConfig) -> torch.optim.Optimizer:
    # PyTorch's fused kernel fails if a parameter has no gradient in the first step and gets one in a later step.
    momentum = config.betas[0]
    return torch.optim.SGD(groups, momentum=momentum, nesterov=momentum > 0)


class OptimizerRow(NamedTuple):
    """Implementation of one value of the setting `training.optimizer`.

    make   function that returns the optimizer for groups of parameters
    state  function that returns the number of state values that the optimizer stores for each trained weight
    """

    make: Callable[[list[JsonObject], TrainingConfig], torch.optim.Optimizer]
    state: Callable[[TrainingConfig], int]


OPTIMIZERS = {
    "adam": OptimizerRow(_adam, lambda config: 2),
    "adamw": OptimizerRow(_adamw, lambda config: 2),
    "bert_adam": OptimizerRow(lambda groups, config: BertAdam(groups, config.betas, config.eps), lambda config: 2),
    "rmsprop": OptimizerRow(lambda groups, config: RMSprop(groups, config.eps), lambda config: 1),
    "sgd": OptimizerRow(_sgd, lambda config: int(config.betas[0] > 0)),
}
