"""Batches of texts, and computation of a model's outputs for many texts in batches of similar length."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from manyheads.core.runtime import ComputeConfig
from manyheads.data.batching import pad, token_batches
from manyheads.training.distributed_map import distributed_map

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")
BATCH_TOKENS = 8192  # maximum number of tokens in a batch, padding included


def padded(rows: Sequence[ArrayLike], pad_id: int) -> tuple[Tensor, Tensor]:
    """Return the padded token ids of the texts, (B, T), and the length of each text, (B,)."""
    lengths = torch.tensor([len(row) for row in rows])  # type: ignore[arg-type]
    return torch.from_numpy(pad(rows, pad_id)), lengths


def moved(batch: T, device: str) -> T:
    """Return a copy of a batch, which is a dataclass, with its tensors on a device."""
    tensors = {name: value for name, value in vars(batch).items() if isinstance(value, Tensor)}
    return replace(batch, **{name: tensor.to(device) for name, tensor in tensors.items()})


def outputs(
    forward: Callable[..., Tensor],
    compute: ComputeConfig,
    ids: Sequence[ArrayLike],
    padding: int,
    segments: Sequence[ArrayLike] | None = None,
) -> Iterator[tuple[int, Tensor]]:
    """Yield the index of each text and the model's output for it, in the order of the batches.

    The outputs are float32 tensors on the CPU, without gradients.

    forward   function that computes the outputs of a batch from padded ids (B, T), lengths (B,) and, if given, segments
              (B, T). If it returns an output for each token, the outputs at padding tokens are not removed
    ids       token ids of each text
    padding   id of the padding token
    segments  segment ids of each text
    """
    lengths = [len(row) for row in ids]  # type: ignore[arg-type]
    batches = token_batches(lengths, lengths, max([BATCH_TOKENS, *lengths]), seed=0, epoch=0)

    def run_batch(rows: NDArray[np.int64]) -> Tensor:
        batch = [*padded([ids[i] for i in rows], padding)]
        if segments is not None:
            batch.append(padded([segments[i] for i in rows], 0)[0])
        with torch.inference_mode(), compute.autocast():
            return forward(*(tensor.to(compute.device) for tensor in batch)).float().cpu()

    for rows, results in zip(batches, distributed_map(batches, run_batch), strict=True):
        yield from zip(rows.tolist(), results, strict=True)
