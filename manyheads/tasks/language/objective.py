"""Training task for language modeling: batches of running text, next-token loss and validation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor

from manyheads import directory
from manyheads.core.experts import balance_losses
from manyheads.core.interface import Generates
from manyheads.core.runtime import ComputeConfig
from manyheads.data.batching import Lazy
from manyheads.data.text.blocks import Groups, Stream, block_starts
from manyheads.errors import UserError
from manyheads.models.recurrence import ponder_cost, states_and_halting
from manyheads.tasks.evaluation import values
from manyheads.training.distributed_map import distributed_map
from manyheads.training.loss import CHUNK, smoothed_cross_entropy
from manyheads.training.objective import Better, Loss
from manyheads.training.record import Metrics

SCORED_TOKENS = 16_384  # maximum number of tokens that the model reads at once in an evaluation


@dataclass(frozen=True)
class Batch:
    """Batch of token blocks.

    read   (B, T) input tokens of the model
    write  (B, T) target tokens: the next token after each input token
    """

    read: Tensor
    write: Tensor

    @property
    def items(self) -> int:
        return self.write.numel()


@dataclass(eq=False)
class LanguageModelingObjective:
    """Training task for language modeling, with the next-token cross-entropy.

    The loss of a Universal Transformer includes its halting cost, and the loss of a model with experts the
    load-balancing loss.

    train, validation  streams of token ids (`data/text/blocks.py`)
    validation_bytes   number of UTF-8 bytes in the validation text
    block, rows        number of tokens in a training block, and number of blocks in a micro-batch
    random             if True, blocks start at random offsets; if False, blocks are adjacent (see `block_starts`)
    """

    unit: ClassVar = "tokens"
    metrics: ClassVar[Mapping[str, Better]] = {"loss": "lower", "perplexity": "lower", "bits_per_byte": "lower"}

    model: Generates[Any, Any]
    tokenizer: Tokenizer
    train: Stream
    validation: Stream
    validation_bytes: int
    _: KW_ONLY
    compute: ComputeConfig
    block: int
    rows: int
    random: bool
    seed: int

    def __post_init__(self) -> None:
        max_positions = self.model.config.max_positions
        if self.block > max_positions:
            raise UserError(
                f"block is {self.block} tokens, but the model has only {max_positions} positions: set a smaller block"
            )
        self.model.to(self.compute.device)
        self._forward_states = states_and_halting(self.model, self.compute)

    def batches(self, epoch: int) -> Sequence[Batch]:
        starts = block_starts(len(self.train), self.block, seed=self.seed, epoch=epoch, random=self.random)
        return Lazy(Groups(starts, self.rows), self._batch)

    def _batch(self, starts: NDArray[np.int64]) -> Batch:
        blocks = np.stack([self.train[start : start + self.block + 1] for start in starts]).astype(np.int64)
        # blocks of T input tokens and one more token, because targets are shifted by one, (B, T + 1)
        tokens = torch.from_numpy(blocks)
        return Batch(tokens[:, :-1], tokens[:, 1:])

    def loss(self, batch: Batch) -> Loss:
        with balance_losses(self.model) as balance:
            hidden, halting = self._forward_states(batch.read.to(self.compute.device))  # (B, T, D)
        target = batch.write.to(self.compute.device).flatten()
        total = smoothed_cross_entropy(
            hidden.flatten(0, 1), self.model.output_weight, None, target, smoothing=0.0, pad=None
        )
        return Loss(total + batch.items * (ponder_cost(self.model, halting) + sum(balance)), batch.items)

    def validate(self) -> dict[str, float]:
        """Return the validation metrics. Every token is scored once, in blocks of the training length."""
        losses = token_losses(self.model, self.validation, self.compute, context=self.block, stride=self.block)
        return values(text_metrics(losses, self.validation_bytes, ""))

    def save(self, out: Path) -> str:
        return directory.save(out, self.model, self.tokenizer)


@torch.no_grad()
def token_losses(
    model: Generates[Any, Any], stream: Stream, compute: ComputeConfig, *, context: int, stride: int
) -> NDArray[np.float64]:
    """Return the loss -ln p of every token in a stream (N,) except the first, (N - 1,).

    p is the probability of the token given the tokens before it. The stream is read in windows of `context` tokens that
    start `stride` tokens apart. Each window scores the tokens that earlier windows have not scored. So every token is
    scored once, with at least context - stride tokens of context, except at the start of the text.
    """
    if not 0 < stride <= context <= model.config.max_positions:
        raise UserError(
            f"windows of {context} tokens every {stride}: "
            f"expected 0 < stride <= context and at most {model.config.max_positions} positions"
        )
    total = len(stream) - 1
    losses = np.empty(max(total, 0))
    begins = range(0, max(min(total, 1), total - context + stride), stride)
    full = [begin for begin in begins if begin + context <= total]
    rows = max(1, SCORED_TOKENS // context)
    groups = [full[i : i + rows] for i in range(0, len(full), rows)] + [[b] for b in begins[len(full) :]]

    def window_losses(group: list[int]) -> NDArray[np.float64]:
        length = min(context, total - group[0])
        windows = np.stack([stream[begin : begin + length + 1] for begin in group]).astype(np.int64)
        # windows of T input tokens and one more token, because targets are shifted by one, (B, T + 1)
        tokens = torch.from_numpy(windows).to(compute.device)
        with compute.autocast():
            hidden = model.hidden(tokens[:, :-1])  # (B, T, D)
        pairs = zip(hidden.flatten(0, 1).split(CHUNK), tokens[:, 1:].flatten().split(CHUNK), strict=True)
        group_losses = torch.cat([F.cross_entropy(model.project(h).float(), t, reduction="none") for h, t in pairs])
        return group_losses.view(len(group), length).double().cpu().numpy()

    for group, group_rows in zip(groups, distributed_map(groups, window_losses), strict=True):
        for begin, row in zip(group, group_rows, strict=True):
            first = context - stride if begin else 0
            losses[begin + first : begin + len(row)] = row[first:]
    return losses


def text_metrics(losses: NDArray[np.float64], size: int, suffix: str) -> Metrics:
    """Return the metrics of a text with `size` UTF-8 bytes, given the losses of all its tokens.

    The metrics are the loss in nats per token, the perplexity, and bits_per_byte, which does not depend on the
    vocabulary.
    """
    if not len(losses):
        raise UserError("found no token to score: the text must have at least two tokens")
    total = float(losses.sum())
    loss = total / len(losses)
    measures: dict[str, tuple[float, str]] = {
        "loss": (loss, "nats per token"),
        "perplexity": (math.exp(loss) if loss < 700 else math.inf, "per token"),
        "bits_per_byte": (total / math.log(2) / size, f"{size:,} UTF-8 bytes"),
    }
    tokens = f"{len(losses):,} tokens{suffix}"
    return {name: {"value": value, "signature": f"{unit}|{tokens}"} for name, (value, unit) in measures.items()}
