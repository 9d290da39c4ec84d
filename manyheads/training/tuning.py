"""Selection of the weights that are trained: frozen parameters, LoRA, and a learning rate for each layer."""

from __future__ import annotations

import logging
import re
from fnmatch import fnmatchcase
from typing import Self

from torch import nn

from manyheads.core.block import Stack
from manyheads.core.heads import belongs_to_head
from manyheads.core.interface import Model
from manyheads.core.low_rank import add_low_rank
from manyheads.errors import UserError, shown
from manyheads.training.config import TrainingConfig

logger = logging.getLogger(__name__)


class FrozenNorm(nn.Module):
    """Mixin class for batch normalization that keeps the initial statistics, because it always is in eval mode."""

    def train(self, mode: bool = True) -> Self:
        """Stay in eval mode."""
        return super().train(False)


def select_trained(model: nn.Module, config: TrainingConfig) -> None:
    """Freeze parameters and add low-rank layers as configured. Raises UserError if a setting does not fit the model."""
    if config.freeze:
        _freeze(model, config.freeze)
    if config.lora_rank is not None:
        _add_low_rank(model, config.lora_rank, config)
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    if isinstance(model, Model) and (untrained := [name for name in model.new if name in frozen]):
        raise UserError(
            f"training: {shown(untrained)} would keep initial values, because the model of --init has no such weights."
            " New layers must be trained: leave them out of training.freeze, or omit training.lora_rank"
        )
    _freeze_norms(model, config.freeze if config.lora_rank is None else ("backbone",))
    if config.layer_decay < 1:
        layer_rates(model, config.layer_decay)
    if config.selects:
        total, trained = (
            sum(p.numel() for p in model.parameters() if p.requires_grad >= part) for part in (False, True)
        )
        logger.info(f"training {trained:,} of {total:,} parameters")


def layer_rates(model: nn.Module, decay: float) -> dict[str, float]:
    """Return the factor of the learning rate for each parameter: `decay` to the power of the layers above it.

    Embeddings and other parameters before the blocks are the lowest layer. Heads and other parameters after the blocks
    have the factor 1 (Clark 2020, Bao 2021). Raises UserError for a model without a single stack of blocks.
    """
    stacks = [
        (f"{name}.blocks.", len(stack.blocks)) for name, stack in model.named_modules() if isinstance(stack, Stack)
    ]
    if len(stacks) != 1:
        kind = type(model).__name__
        raise UserError(f"training.layer_decay: expected a model with one stack of blocks; {kind} has {len(stacks)}")
    [(prefix, depth)] = stacks
    rates, layer = {}, 0
    for name, _ in model.named_parameters():
        if name.startswith(prefix):
            layer = 1 + int(name.removeprefix(prefix).partition(".")[0])
        elif layer:
            layer = depth + 1
        rates[name] = decay ** (0 if belongs_to_head(name) else depth + 1 - layer)
    return rates


def _freeze(model: nn.Module, patterns: tuple[str, ...]) -> None:
    names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    frozen = [name for name in names if any(_matches(name, pattern) for pattern in patterns)]
    unmatched = [pattern for pattern in patterns if not any(_matches(name, pattern) for name in names)]
    if unmatched or frozen == names:
        fault = f"{', '.join(unmatched)} matches no parameter" if unmatched else "nothing is left to train"
        shown = ", ".join(dict.fromkeys(re.sub(r"\.\d+\.", ".N.", name) for name in names))
        raise UserError(f"training.freeze: {fault}; the parameters are {shown}")
    for name in frozen:
        model.get_parameter(name).requires_grad_(False)


def _freeze_norms(model: nn.Module, patterns: tuple[str, ...]) -> None:
    """Freeze the statistics of batch normalization layers whose parameters are frozen.

    A layer without parameters is frozen if its name matches a pattern of `training.freeze`.
    """
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._NormBase) and not isinstance(module, FrozenNorm):
            trained = [parameter.requires_grad for parameter in module.parameters()]
            if not any(trained or [not any(_matches(name, pattern) for pattern in patterns)]):
                kind = type(module)
                module.__class__ = type(f"Frozen{kind.__name__}", (FrozenNorm, kind), {})
                module.train(False)


def _add_low_rank(model: nn.Module, rank: int, config: TrainingConfig) -> None:
    linear = {name: m for name, m in model.named_modules() if type(m) is nn.Linear and m.weight.requires_grad}
    layers = {name: layer for name, layer in linear.items() if not belongs_to_head(name)}
    for pattern in config.lora_layers:
        if not any(_matches(name, pattern) for name in layers):
            kinds = ", ".join(dict.fromkeys(name.rpartition(".")[2] for name in layers)) or "no such layer"
            raise UserError(f"training.lora_layers: {pattern!r} matches no trained linear layer; found {kinds}")
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(parameter.requires_grad and belongs_to_head(name) and "." in name)
    # A saved LoRA adapter also contains the trained heads. Store their names now, because FSDP replaces the parameters
    # while it saves.
    if isinstance(model, Model):
        model.trained_heads = tuple(name for name, parameter in model.named_parameters() if parameter.requires_grad)
    for layer in [m for name, m in layers.items() if any(_matches(name, p) for p in config.lora_layers)]:
        add_low_rank(layer, rank, config.lora_alpha, config.lora_dropout)


def _matches(name: str, pattern: str) -> bool:
    """Return True if a pattern matches whole parts of a dotted name. "backbone" matches all names except heads."""
    return not belongs_to_head(name) if pattern == "backbone" else fnmatchcase(f".{name}.", f"*.{pattern}.*")
