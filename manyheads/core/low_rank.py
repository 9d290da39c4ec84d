"""Low-rank adaptation of linear layers: LoRA (Hu 2021)."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch.nn.functional as F
from torch import Tensor, nn

from manyheads.core.dropout import dropout

PREFIX = "lora_"  # prefix of the names of the low-rank matrices and their scale factor in a layer


class LowRankLinear(nn.Linear):
    """Linear layer with a frozen weight W and a trained addition of low rank: y = x (W + s B A)^T + bias.

    A (rank, inputs) begins with random values and B (outputs, rank) with zeros. s is alpha / rank. Dropout applies only
    to the input of the addition. The attribute `weight` is W alone.
    """

    rate: float
    lora_a: nn.Parameter
    lora_b: nn.Parameter
    lora_scale: Tensor

    def forward(self, input: Tensor) -> Tensor:
        low = F.linear(dropout(input, self.rate, self.training), self.lora_a)
        return super().forward(input) + self.lora_scale * F.linear(low, self.lora_b)


def add_low_rank(layer: nn.Linear, rank: int, alpha: float, rate: float) -> None:
    """Convert a linear layer to a `LowRankLinear` in place. The existing parameters keep their names.

    rank   number of rows of A
    alpha  alpha / rank is the factor s of the low-rank product
    rate   dropout rate of the input of A
    """
    layer.requires_grad_(False)
    layer.__class__ = LowRankLinear
    assert isinstance(layer, LowRankLinear)
    layer.rate = rate
    layer.lora_a = nn.Parameter(layer.weight.new_empty(rank, layer.in_features))
    layer.lora_b = nn.Parameter(layer.weight.new_zeros(layer.out_features, rank))
    layer.register_buffer("lora_scale", layer.weight.new_tensor(alpha / rank))
    nn.init.kaiming_uniform_(layer.lora_a, a=math.sqrt(5))


def merged(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of a model without low-rank matrices: W + s B A replaces each weight W."""
    result = {name: tensor for name, tensor in tensors.items() if f".{PREFIX}" not in name}
    for layer in [name.removesuffix("lora_a") for name in tensors if name.endswith(".lora_a")]:
        a, b, scale = (tensors[f"{layer}{PREFIX}{part}"].detach() for part in ("a", "b", "scale"))
        result[f"{layer}weight"] = result[f"{layer}weight"].detach() + scale * (b @ a)
    return result
