"""Linear layers whose matrix product is computed by a kernel of `kernels/`."""

from __future__ import annotations

from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from manyheads.core.interface import HasOutputWeights, OutputProjection
from manyheads.inference.kernels.arguments import Sizes, Weights
from manyheads.inference.kernels.compiled import Kernel
from manyheads.inference.kernels.packed import KINDS, MAX_SERIAL, PER_WORD, Team, Workspace, pack_weights

run_linear = Kernel("fused.run_linear")


class FusedLinear(nn.Module):
    """Linear layer with a fused kernel: x (..., K) -> x W^T + b (..., N), float32."""

    def __init__(self, weight: Tensor, bias: Tensor | None, precision: str, team: Team) -> None:
        super().__init__()
        kind = KINDS[precision]
        self.weight, self.bias = weight.detach(), None if bias is None else bias.detach()
        self.out_features, self.in_features = weight.shape
        self._sizes = Sizes(kind, 1, 1, self.in_features, 0, 1, 0, 0, -1)
        self._team = team
        self._workspace = Workspace(team.size, -(-self.in_features // PER_WORD[kind]) * 4, 1, 1, 1, 1, 1)

    @cached_property
    def _weights(self) -> Weights:
        """Weights of the kernel. They are packed in the first call, because most layers of a fused stack are never
        called separately.
        """
        return pack_weights([((), [(self.weight, self.bias)])], self._sizes.kind, None, (0.0, 0.0), (1.0, 1.0))

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype == torch.float64:
            return F.linear(x, self.weight, self.bias)
        rows = x.detach().float().reshape(-1, self.in_features).contiguous()
        out = torch.empty(len(rows), self.out_features)
        if len(rows):
            threads = 1 if rows.numel() * self.out_features < MAX_SERIAL else self._team.threads
            self._team.run(run_linear, threads, self._sizes, self._weights, rows.numpy(), out.numpy(),
                           self._workspace.of(len(rows), 1, 1))  # fmt: skip
        return out.view(*x.shape[:-1], self.out_features)


class FusedProjection(nn.Module):
    """Output projection (`core.interface.OutputProjection`) with a fused kernel, for one model."""

    def __init__(self, plain: OutputProjection, precision: str, team: Team) -> None:
        super().__init__()
        self._precision, self._team, self.tap = precision, team, plain.tap
        self._linear: FusedLinear | None = None

    def forward(self, hidden: Tensor, model: HasOutputWeights) -> Tensor:
        if self._linear is None:
            self._linear = FusedLinear(model.output_weight, model.output_bias, self._precision, self._team)
        return self.tap.on("logits", self._linear(hidden))


def is_divisible(layer: nn.Linear, precision: str) -> bool:
    """Return True if a kernel supports a linear layer in a precision.

    The input width of the layer must be a multiple of the number of values that the kernel reads at once.
    """
    return layer.in_features % PER_WORD[KINDS[precision]] == 0
