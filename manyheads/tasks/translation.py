"""Translation as a task: from pairs of sentences to a trained model, and from a model to translations and scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from manyheads import directory
from manyheads.core.runtime import Route
from manyheads.data.batching import pad, token_batches
from manyheads.data.store import TokenStore
from manyheads.models.transformer import Transformer
from manyheads.tasks.loss import smoothed_cross_entropy


@dataclass(frozen=True)
class Batch:
    """Padded sentences: source (B, Ts) with lengths (B,), what the decoder reads and what it should write (B, Tt)."""

    source: Tensor
    source_lengths: Tensor
    read: Tensor
    write: Tensor
    tokens: int  # real target tokens, the end tokens included

    def to(self, device: str) -> Batch:
        tensors = (t.to(device) for t in (self.source, self.source_lengths, self.read, self.write))
        return Batch(*tensors, tokens=self.tokens)


@dataclass(frozen=True)
class Corpus:
    """Tokenised pairs, every sentence with its end token."""

    sources: TokenStore
    targets: TokenStore

    def batch(self, rows: Sequence[int], model: Transformer) -> Batch:
        c = model.config
        sources, targets = [self.sources[int(i)] for i in rows], [self.targets[int(i)] for i in rows]
        write = pad(targets, c.pad)
        read = pad([[c.start, *t[:-1]] for t in targets], c.pad)
        return Batch(
            torch.from_numpy(pad(sources, c.pad)),
            torch.tensor([len(s) for s in sources]),
            torch.from_numpy(read),
            torch.from_numpy(write),
            sum(map(len, targets)),
        )


class _Batches(Sequence[Batch]):
    """An epoch's batches, collated when asked for."""

    def __init__(self, rows: list[Any], corpus: Corpus, model: Transformer) -> None:
        self._rows, self._corpus, self._model = rows, corpus, model

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Batch:  # type: ignore[override]  # no slices
        return self._corpus.batch(self._rows[index], self._model)


class TranslationTask:
    """What the training loop trains: the smoothed cross-entropy of the target given the source.

    batch_tokens  padded tokens of a micro-batch, on the source and on the target side each
    smoothing     of the labels; the validation's loss is unsmoothed
    """

    def __init__(
        self,
        model: Transformer,
        tokenizer: Tokenizer,
        target_tokenizer: Tokenizer | None,
        train: Corpus,
        validation: Corpus,
        *,
        route: Route,
        batch_tokens: int,
        smoothing: float,
        seed: int,
    ) -> None:
        self.model = model.to(route.device)
        self.tokenizer, self.target_tokenizer = tokenizer, target_tokenizer
        self.train, self.validation = train, validation
        self.route, self.batch_tokens, self.smoothing, self.seed = route, batch_tokens, smoothing, seed

    def batches(self, epoch: int) -> Sequence[Batch]:
        rows = token_batches(
            self.train.sources.lengths, self.train.targets.lengths, self.batch_tokens, seed=self.seed, epoch=epoch
        )
        return _Batches(rows, self.train, self.model)

    def loss(self, batch: Batch) -> Tensor:
        return self._loss(batch, self.smoothing)

    def validate(self) -> dict[str, float]:
        """The unsmoothed loss per target token and its exponential."""
        corpus = self.validation
        rows = token_batches(corpus.sources.lengths, corpus.targets.lengths, self.batch_tokens, seed=0, epoch=0)
        total, tokens = 0.0, 0
        for batch in _Batches(rows, corpus, self.model):
            with self.route.autocast():
                total += float(self._loss(batch, 0.0))
            tokens += batch.tokens
        loss = torch.tensor(total / tokens)
        return {"loss": float(loss), "perplexity": float(loss.exp())}

    def save(self, out: Path) -> str:
        return directory.save(out, self.model, self.tokenizer, self.target_tokenizer)

    def _loss(self, batch: Batch, smoothing: float) -> Tensor:
        batch = batch.to(self.route.device)
        hidden = self.model.hidden(batch.source, batch.source_lengths, batch.read)  # (B, Tt, D)
        return smoothed_cross_entropy(
            hidden.flatten(0, 1), self.model.output_weight, self.model.output_bias, batch.write.flatten(),
            smoothing=smoothing, pad=self.model.config.pad,
        )  # fmt: skip
