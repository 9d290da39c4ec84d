"""Translation as a task: from pairs of sentences to a trained model."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor

from manyheads import directory
from manyheads.core.runtime import ComputeConfig
from manyheads.data.batching import Lazy, pad, token_batches
from manyheads.data.readers.parallel import Pairs
from manyheads.data.text.store import TokenStore
from manyheads.errors import UserError
from manyheads.models.recurrence import Halting, HaltingStatistics, ponder_cost, states_and_halting
from manyheads.models.seq2seq_lstm import Seq2SeqLSTM
from manyheads.models.transformer import Transformer
from manyheads.models.universal import Universal
from manyheads.training.distributed_map import distributed_map
from manyheads.training.loss import smoothed_cross_entropy
from manyheads.training.task import Better, Loss, LossPart

logger = logging.getLogger(__name__)

Translating = Transformer | Universal | Seq2SeqLSTM


@dataclass(frozen=True)
class Batch:
    """Padded sentences: source (B, Ts) with lengths (B,), what the decoder reads and what it should write (B, Tt)."""

    source: Tensor
    source_lengths: Tensor
    read: Tensor
    write: Tensor
    items: int  # real target tokens, the end tokens included
    offset: Tensor | None = None  # (B,) the position that each row begins at; None: 0

    @property
    def counts(self) -> tuple[int, int]:
        """Target tokens, and source tokens: what thinking costs is a mean over each."""
        return self.items, int(self.source_lengths.sum())

    def to(self, device: str) -> Batch:
        source, lengths, inputs, write = (
            t.to(device) for t in (self.source, self.source_lengths, self.read, self.write)
        )
        return Batch(
            source, lengths, inputs, write, self.items, None if self.offset is None else self.offset.to(device)
        )


@dataclass(frozen=True)
class Corpus:
    """Tokenised pairs, every sentence with its end token, of which `limit` tokens are read (the end among them)."""

    sources: TokenStore
    targets: TokenStore
    limit: int

    def checked(self, pairs: Pairs, *, truncate: bool) -> Corpus:
        """Raises UserError where a sentence is longer than the limit, unless it may be cut."""
        for side, store in enumerate((self.sources, self.targets)):
            over = np.flatnonzero(store.lengths > self.limit)
            if len(over):
                name = pairs.files[min(side, len(pairs.files) - 1)] if pairs.files else "the corpus"
                excess = f"{name}: {len(over):,} of {len(store):,} sentences are longer than {self.limit} tokens"
                if not truncate:
                    raise UserError(
                        f"{excess}, the first is sentence {over[0] + 1:,} with {store.lengths[over[0]]:,}: raise "
                        "max_length, remove them, or cut them with truncate=true"
                    )
                logger.info(f"{excess} and are cut")
        return self

    def lengths(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Tokens that are read of each source and of each target."""
        return self.sources.lengths.clip(max=self.limit), self.targets.lengths.clip(max=self.limit)

    def mean_lengths(self) -> tuple[int, int]:
        source, target = self.lengths()
        return round(float(source.mean())), round(float(target.mean()))

    def batch(self, rows: NDArray[np.int64], model: Translating) -> Batch:
        c = model.config
        sources = [self._cut(self.sources[int(i)]) for i in rows]
        targets = [self._cut(self.targets[int(i)]) for i in rows]
        return Batch(
            torch.from_numpy(pad(sources, model.source_pad)),
            torch.tensor([len(s) for s in sources]),
            torch.from_numpy(pad([[c.start, *t[:-1]] for t in targets], c.pad)),
            torch.from_numpy(pad(targets, c.pad)),
            sum(map(len, targets)),
        )

    def _cut(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        return ids if len(ids) <= self.limit else np.append(ids[: self.limit - 1], ids[-1])


@dataclass(eq=False)
class TranslationTask:
    """What the training loop trains: the smoothed cross-entropy of the target given the source.

    A Universal Transformer that may halt also pays, for every target token, what thinking costs.

    batch_tokens  padded tokens of a micro-batch, on the source and on the target side each
    smoothing     of the labels; the validation's loss is unsmoothed
    vocabulary    of the model it starts from (`directory.Loaded`): saved in place of the tokenizers
    """

    unit: ClassVar = "tokens"

    model: Translating
    tokenizer: Tokenizer
    target_tokenizer: Tokenizer | None
    train: Corpus
    validation: Corpus
    _: KW_ONLY
    compute: ComputeConfig
    batch_tokens: int
    smoothing: float
    seed: int
    vocabulary: Mapping[str, bytes] | None = None

    def __post_init__(self) -> None:
        self.model.to(self.compute.device)
        self._think = states_and_halting(self.model, self.compute.compile)

    @property
    def metrics(self) -> dict[str, Better]:
        metrics: dict[str, Better] = {"loss": "lower", "perplexity": "lower"}
        if isinstance(self.model, Universal) and self.model.config.halting != "fixed":
            metrics |= {"encoder_steps": "lower", "decoder_steps": "lower"}
        return metrics

    def batches(self, epoch: int) -> Lazy[Batch]:
        rows = token_batches(*self.train.lengths(), self.batch_tokens, seed=self.seed, epoch=epoch)
        return Lazy(rows, lambda batch: self.train.batch(batch, self.model))

    def loss(self, batch: Batch) -> Loss:
        total, thoughts = self._loss(batch, self.smoothing)
        if not thoughts:
            return Loss(total, batch.items)
        of_source, of_target = (
            count * ponder_cost(self.model, {stack: thoughts[stack]}) if stack in thoughts else total.new_zeros(())
            for stack, count in zip(("encoder", "decoder"), reversed(batch.counts), strict=True)
        )
        source_part = LossPart(torch.as_tensor(of_source), batch.counts[1])
        return Loss(total + of_target, batch.items, others=(source_part,))

    def validate(self) -> dict[str, float]:
        """The unsmoothed loss per target token and its exponential, and the mean steps of positions that may halt."""
        corpus = self.validation
        rows = token_batches(*corpus.lengths(), self.batch_tokens, seed=0, epoch=0)

        def run_batch(indices: NDArray[np.int64]) -> tuple[float, dict[str, int], dict[str, float]]:
            """The loss, the number of positions by stack, and their steps by stack."""
            batch = corpus.batch(indices, self.model)
            with self.compute.autocast():
                loss, thoughts = self._loss(batch, 0.0)
            positions = dict(zip(("decoder", "encoder"), batch.counts, strict=True))
            steps = {stack: float(ponder.mean_steps) * positions[stack] for stack, ponder in thoughts.items()}
            return float(loss), positions, steps

        losses, positions, steps = zip(*distributed_map(rows, run_batch), strict=True)
        mean_loss = torch.tensor(sum(losses) / sum(counts["decoder"] for counts in positions))
        mean_steps = {
            f"{stack}_steps": sum(of_batch[stack] for of_batch in steps) / sum(counts[stack] for counts in positions)
            for stack in steps[0]
        }
        return {"loss": float(mean_loss), "perplexity": float(mean_loss.exp()), **mean_steps}

    def save(self, out: Path) -> str:
        return directory.save(out, self.model, self.tokenizer, self.target_tokenizer, vocabulary=self.vocabulary)

    def _loss(self, batch: Batch, smoothing: float) -> tuple[Tensor, HaltingStatistics]:
        batch = batch.to(self.compute.device)
        pad = self.model.config.pad
        # without the target's lengths, the mask is the plain triangle that fused kernels know; halting counts by them
        target_lengths = (batch.write != pad).sum(1) if isinstance(self.model, Halting) else None
        hidden, thoughts = self._think(
            batch.source, batch.source_lengths, batch.read, target_lengths, batch.offset
        )  # (B, Tt, D)
        loss = smoothed_cross_entropy(
            hidden.flatten(0, 1), self.model.output_weight, self.model.output_bias, batch.write.flatten(),
            smoothing=smoothing, pad=pad,
        )  # fmt: skip
        return loss, thoughts
