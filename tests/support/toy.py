"""A small task with dropout and unequal batches."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from manyheads.core.runtime import ComputeConfig
from manyheads.training.objective import Better, Loss


@dataclass
class ToyBatch:
    inputs: Tensor  # (tokens, 4)
    targets: Tensor  # (tokens,)

    @property
    def items(self) -> int:
        return len(self.targets)


class ToyBatches(Sequence[Any]):
    """Batches of 1 to 8 items, `joined` of them made one, in an order that depends on the epoch alone."""

    def __init__(self, count: int, epoch: int, dtype: torch.dtype, joined: int = 1) -> None:
        order = np.random.default_rng((7, epoch)).permutation(count)
        self.groups = [order[i : i + joined] for i in range(0, count, joined)]
        self.dtype = dtype

    def __len__(self) -> int:
        return len(self.groups)

    def __getitem__(self, index: Any) -> Any:
        generators = [np.random.default_rng((11, int(seed))) for seed in self.groups[index]]
        inputs = torch.from_numpy(np.concatenate([g.normal(size=(g.integers(1, 9), 4)) for g in generators]))
        return ToyBatch(inputs.to(self.dtype), (inputs.sum(1) > 0).long())


class ToyModel(nn.Module):
    def __init__(self, dropout: float, ballast: int) -> None:
        super().__init__()
        self.first = nn.Linear(4, 16)
        self.drop = nn.Dropout(dropout)
        self.second = nn.Linear(16, 4)
        self.third = nn.Linear(4, 2)
        self.tied = self.first  # one parameter under two names
        self.register_buffer("ballast", torch.zeros(ballast))  # makes a checkpoint slow to write

    def forward(self, inputs: Tensor) -> Tensor:
        return self.third(torch.tanh(self.second(self.drop(torch.tanh(self.first(inputs))))))


class ToyTask:
    unit = "items"
    metrics: Mapping[str, Better] = {"loss": "lower"}

    def __init__(
        self,
        *,
        batches: int = 10,
        dropout: float = 0.3,
        dtype: torch.dtype = torch.float32,
        ballast: int = 1,
        joined: int = 1,
        validations: Sequence[float] = (),
    ) -> None:
        torch.manual_seed(3)
        self.model = ToyModel(dropout, ballast).to(dtype)
        self.count, self.dtype, self.joined = batches, dtype, joined
        self.validations = validations  # validation values of steps 1, 2, ..., instead of a measurement
        self.calls = 0
        self.before_loss: Callable[[int], object] = lambda call: None

    def batches(self, epoch: int) -> Sequence[Any]:
        return ToyBatches(self.count, epoch, self.dtype, self.joined)

    def loss(self, batch: ToyBatch) -> Loss:
        self.calls += 1
        self.before_loss(self.calls)
        total = nn.functional.cross_entropy(self.model(batch.inputs), batch.targets, reduction="sum")
        return Loss(total, batch.items)

    def validate(self) -> dict[str, float]:
        assert not self.model.training
        batch = ToyBatches(1, 0, self.dtype)[0]
        logits = self.model(batch.inputs)
        return {"loss": nn.functional.cross_entropy(logits, batch.targets).item()}

    def save(self, directory: Path) -> str:
        directory.mkdir(parents=True, exist_ok=True)
        save_file({n: p.detach().clone() for n, p in self.model.named_parameters()}, directory / "model.safetensors")
        return "toy"


def toy_route(**changes: Any) -> ComputeConfig:
    return replace(ComputeConfig("cpu", "float32", 1, "highest", compiled=False), **changes)
