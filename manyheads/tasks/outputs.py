"""What a model gives for many texts: rows of like length are padded to batches and go through it together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from manyheads.core.runtime import ComputeConfig
from manyheads.data.batching import pad, token_batches
from manyheads.training.distributed_map import distributed_map

BATCH_TOKENS = 8192  # padded tokens that go through a model at once


def padded(rows: Sequence[ArrayLike], padding: int) -> tuple[Tensor, Tensor]:
    """Ids (B, T) of texts, and their lengths (B,)."""
    lengths = torch.tensor([len(row) for row in rows])  # type: ignore[arg-type]
    return torch.from_numpy(pad(rows, padding)), lengths


def outputs(
    forward: Callable[..., Tensor],
    compute: ComputeConfig,
    ids: Sequence[ArrayLike],
    padding: int,
    segments: Sequence[ArrayLike] | None = None,
) -> Iterator[tuple[int, Tensor]]:
    """The number of each text, in the order of batches, and its output without gradients: float32 on the CPU.

    forward  of padded ids (B, T), lengths (B,) and, where there are some, segments (B, T). Where it gives an output for
             each token, those of the padding are among them.
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
