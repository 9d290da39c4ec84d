"""Optimisers; their learning rate is set by the schedule before every step."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from manyheads.errors import UserError
from manyheads.training.config import TrainingConfig


def optimizer_for(model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
    """Adam (Vaswani 2017: betas 0.9 and 0.98, eps 1e-9) or AdamW, as one fused kernel; BERT's; Keras's RMSprop;
    or SGD with the Nesterov momentum betas[0], for convolutional nets (He 2016: learning rate 0.1, momentum 0.9, decay
    1e-4).

    Weight decay applies to matrices and embeddings, not to biases and norms (Devlin 2018, Radford 2018), nor to the
    parameters that the model lists in `undecayed`.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    if not parameters:
        raise UserError("the model has no trainable parameter")
    if config.optimiser == "adam":
        return torch.optim.Adam(parameters, betas=config.betas, eps=config.eps, fused=True)
    if config.optimiser == "rmsprop":
        return RMSprop(parameters, config.eps)
    kept = {id(model.get_parameter(name)) for name in getattr(model, "undecayed", ())}
    decayed = [p for p in parameters if p.ndim >= 2 and id(p) not in kept]
    groups = [
        {"params": decayed, "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2 or id(p) in kept], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    if config.optimiser == "bert_adam":
        return BertAdam(groups, config.betas, config.eps)
    if config.optimiser == "sgd":
        momentum = config.betas[0]  # PyTorch's fused kernel fails where a parameter's first gradient comes later
        return torch.optim.SGD(groups, momentum=momentum, nesterov=momentum > 0)
    return torch.optim.AdamW(groups, betas=config.betas, eps=config.eps, fused=True)


class BertAdam(torch.optim.Optimizer):
    """AdamW without the correction of the moments' bias (Devlin 2018, the original code's optimization.py).

        m = beta1 * m + (1 - beta1) * g        v = beta2 * v + (1 - beta2) * g^2
        p = p - lr * (m / (sqrt(v) + eps) + weight_decay * p)

    With their moments still near zero the first steps are larger than Adam's, (1 - beta1) / sqrt(1 - beta2) times the
    learning rate: it needs its warm-up. The paper: betas 0.9 and 0.999, eps 1e-6, weight_decay 0.01, clip 1.0.
    """

    def __init__(self, groups: Iterable[dict[str, Any]], betas: tuple[float, float], eps: float) -> None:
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
    """RMSprop (Tieleman & Hinton 2012, lecture 6.5) as Keras 3 has it.

        v = rho * v + (1 - rho) * g^2        p = p - lr * g / sqrt(v + eps)

    Keras's defaults: learning rate 1e-3, rho 0.9, eps 1e-7. PyTorch's own has rho 0.99 (its alpha) and 1e-8, and adds
    eps to the root instead, as Keras did before 2.11. That is another optimiser for small gradients: below the root of
    eps, 3e-4, as those of rare words are, they make small steps here, and there steps as large as all others.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], eps: float, rho: float = 0.9) -> None:
        super().__init__(parameters, {"lr": 0.0, "rho": rho, "eps": eps})

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
