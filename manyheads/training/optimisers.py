"""Optimisers; their learning rate is set by the schedule before every step."""

import torch
from torch import nn

from manyheads.training.config import TrainingConfig


def optimiser(model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
    """Adam (Vaswani 2017: betas 0.9 and 0.98, eps 1e-9) or AdamW, as one fused kernel.

    AdamW decays matrices and embeddings, not biases and norms (Devlin 2018, Radford 2018).
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    if not parameters:
        raise ValueError("the model has no trainable parameter")
    if config.optimiser == "adam":
        return torch.optim.Adam(parameters, betas=config.betas, eps=config.eps, fused=True)
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW([g for g in groups if g["params"]], betas=config.betas, eps=config.eps, fused=True)
