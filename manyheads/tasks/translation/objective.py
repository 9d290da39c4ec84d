"""Training task for translation: batches of sentence pairs, loss and validation."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass
from itertools import islice
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor

from manyheads import directory
from manyheads.core.experts import balance_losses
from manyheads.core.runtime import ComputeConfig
from manyheads.data.batching import Lazy, pad, token_batches
from manyheads.data.readers.parallel import Pairs
from manyheads.data.text.bpe_dropout import BPEDropout
from manyheads.data.text.store import TokenStore
from manyheads.errors import UserError
from manyheads.inference import CompiledModel
from manyheads.models.encoder_decoder import TranslationModel
from manyheads.models.recurrence import HaltingStatistics, ponder_cost, states_and_halting
from manyheads.models.universal import Universal
from manyheads.tasks.evaluation import values
from manyheads.tasks.outputs import moved
from manyheads.tasks.translation.decoding import decode
from manyheads.tasks.translation.metrics import TRANSLATION_METRICS, corpus_metrics
from manyheads.training.distributed_map import distributed_map
from manyheads.training.loss import smoothed_cross_entropy
from manyheads.training.objective import Better, Loss, LossPart

MAX_TRANSLATED = 1000  # maximum number of validation pairs that a validation translates

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Batch:
    """Batch of padded sentence pairs.

    source          (B, Ts) source tokens
    source_lengths  (B,) number of source tokens of each pair
    read            (B, Tt) input tokens of the decoder
    write           (B, Tt) target tokens of the decoder
    """

    source: Tensor
    source_lengths: Tensor
    read: Tensor
    write: Tensor
    items: int  # number of target tokens in the batch, with end tokens but without padding
    # (B,) position of the first target token in each row of the batch. If None, all rows start at position 0.
    offset: Tensor | None = None

    @property
    def counts(self) -> tuple[int, int]:
        """Number of target tokens and number of source tokens in the batch.

        Two numbers are needed because the halting cost is a mean per target token and a mean per source token.
        """
        return self.items, int(self.source_lengths.sum())


@dataclass(frozen=True)
class Corpus:
    """Tokenized sentence pairs.

    limit    maximum number of tokens of a sentence, including its end token. Longer sentences are cut when a batch is
             created
    dropout  functions that divide the words of sources and of targets into other tokens in each epoch (BPE dropout)
    """

    sources: TokenStore
    targets: TokenStore
    limit: int
    dropout: tuple[BPEDropout, BPEDropout] | None = None

    def checked(self, pairs: Pairs, *, truncate: bool) -> Corpus:
        """Return the tokenized corpus.

        Raises UserError if a sentence is longer than the limit, unless `truncate` is true.
        """
        for side, store in enumerate((self.sources, self.targets)):
            too_long = np.flatnonzero(store.lengths > self.limit)
            if len(too_long):
                name = pairs.files[min(side, len(pairs.files) - 1)] if pairs.files else "the corpus"
                excess = f"{name}: {len(too_long):,} of {len(store):,} sentences are longer than {self.limit} tokens"
                if not truncate:
                    raise UserError(
                        f"{excess}, the first is sentence {too_long[0] + 1:,} with {store.lengths[too_long[0]]:,}. "
                        "Raise max_length, remove them, or cut them with truncate=true."
                    )
                logger.info(f"{excess} and are cut")
        return self

    def lengths(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the lengths in tokens of all sources and all targets, after long sentences are cut."""
        return self.sources.lengths.clip(max=self.limit), self.targets.lengths.clip(max=self.limit)

    def mean_lengths(self) -> tuple[int, int]:
        source, target = self.lengths()
        return round(float(source.mean())), round(float(target.mean()))

    def batch(self, rows: NDArray[np.int64], model: TranslationModel, epoch: int = 0) -> Batch:
        c = model.config
        sources = [self._divided(0, self.sources, int(i), epoch) for i in rows]
        targets = [self._divided(1, self.targets, int(i), epoch) for i in rows]
        return Batch(
            torch.from_numpy(pad(sources, model.source_pad)),
            torch.tensor([len(s) for s in sources]),
            torch.from_numpy(pad([[c.start, *t[:-1]] for t in targets], c.pad)),
            torch.from_numpy(pad(targets, c.pad)),
            sum(map(len, targets)),
        )

    def _divided(self, side: int, sentences: TokenStore, row: int, epoch: int) -> NDArray[np.int64]:
        ids = sentences[row]
        return self._cut(ids if self.dropout is None else self.dropout[side](ids, (epoch, row, side)))

    def source(self, row: int) -> NDArray[np.int64]:
        return self._cut(self.sources[row])

    def _cut(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        return ids if len(ids) <= self.limit else np.append(ids[: self.limit - 1], ids[-1])


@dataclass(eq=False)
class TranslationObjective:
    """Training task for translation, with the label-smoothed cross-entropy of the target given the source.

    For a Universal Transformer with adaptive halting, the loss includes the halting cost of each token. For a model
    with experts, it includes the load-balancing loss.

    batch_tokens  maximum number of tokens in a micro-batch, padding included, separately for the source and target
                  texts
    smoothing     label smoothing in training; the validation loss is not smoothed
    vocabulary    contents of the directory of the initial model (`--init`), whose vocabulary files are saved instead of
                  the tokenizers
    references    target texts of the validation pairs, if each validation also translates some of them greedily to
                  measure BLEU and chrF; otherwise None
    decoding      beam width `beam` and length penalty `alpha` for generation_config.json. By default, greedy decoding
    """

    unit: ClassVar = "tokens"

    model: TranslationModel
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
    references: Iterable[str] | None = None
    decoding: Mapping[str, float] | None = None

    def __post_init__(self) -> None:
        self.model.to(self.compute.device)
        self._forward_states = states_and_halting(self.model, self.compute)

    @property
    def metrics(self) -> dict[str, Better]:
        metrics: dict[str, Better] = {"loss": "lower", "perplexity": "lower"}
        if self.references is not None:
            metrics |= dict.fromkeys(TRANSLATION_METRICS, "higher")
        if isinstance(self.model, Universal) and self.model.config.halting != "fixed":
            metrics |= {"encoder_steps": "lower", "decoder_steps": "lower"}
        return metrics

    def batches(self, epoch: int) -> Lazy[Batch]:
        rows = token_batches(*self.train.lengths(), self.batch_tokens, seed=self.seed, epoch=epoch)
        return Lazy(rows, lambda batch: self.train.batch(batch, self.model, epoch))

    def loss(self, batch: Batch) -> Loss:
        with balance_losses(self.model) as balance:
            total, halting = self._loss(batch, self.smoothing)
        total = total + batch.items * sum(balance)
        if not halting:
            return Loss(total, batch.items)
        source_cost, target_cost = (
            count * ponder_cost(self.model, {stack: halting[stack]}) if stack in halting else total.new_zeros(())
            for stack, count in zip(("encoder", "decoder"), reversed(batch.counts), strict=True)
        )
        source_part = LossPart(torch.as_tensor(source_cost), batch.counts[1])
        return Loss(total + target_cost, batch.items, others=(source_part,))

    def validate(self) -> dict[str, float]:
        """Return the validation loss per target token without label smoothing, and the perplexity.

        For a model with adaptive halting, the mean number of steps of each stack is also returned.
        """
        corpus = self.validation
        rows = token_batches(*corpus.lengths(), self.batch_tokens, seed=0, epoch=0)

        def run_batch(indices: NDArray[np.int64]) -> tuple[float, dict[str, int], dict[str, float]]:
            """Return the sum of the losses, the number of positions, and the number of halting steps.

            Positions and steps are counted separately for each stack of layers: encoder and decoder.
            """
            batch = corpus.batch(indices, self.model)
            with self.compute.autocast():
                loss, halting = self._loss(batch, 0.0)
            positions = dict(zip(("decoder", "encoder"), batch.counts, strict=True))
            steps = {stack: float(ponder.mean_steps) * positions[stack] for stack, ponder in halting.items()}
            return float(loss), positions, steps

        losses, positions, steps = zip(*distributed_map(rows, run_batch), strict=True)
        mean_loss = torch.tensor(sum(losses) / sum(counts["decoder"] for counts in positions))
        mean_steps = {
            f"{stack}_steps": sum(batch_steps[stack] for batch_steps in steps)
            / sum(counts[stack] for counts in positions)
            for stack in steps[0]
        }
        scores = {"loss": float(mean_loss), "perplexity": float(mean_loss.exp()), **mean_steps}
        return scores if self.references is None else scores | self._translation_scores(self.references)

    def _translation_scores(self, references: Iterable[str]) -> dict[str, float]:
        """Return BLEU and chrF of greedy translations of validation pairs, of at most 1,000 that are evenly spaced."""
        count = len(self.validation.sources)
        every = -(-count // MAX_TRANSLATED)
        sources = [self.validation.source(row).tolist() for row in range(0, count, every)]
        decoded = decode(CompiledModel(self.model, self.compute), sources)
        tokenizer = self.target_tokenizer or self.tokenizer
        texts = [tokenizer.decode(ranked[0].tokens) if ranked else "" for ranked in decoded]
        return values(corpus_metrics(texts, list(islice(references, 0, None, every))))

    def save(self, out: Path) -> str:
        decoding = None
        if self.decoding is not None:
            beam, alpha = self.decoding["beam"], self.decoding["alpha"]
            decoding = {"num_beams": beam, "length_penalty": alpha, "alpha": alpha}
        return directory.save(
            out, self.model, self.tokenizer, self.target_tokenizer, vocabulary=self.vocabulary, decoding=decoding
        )

    def _loss(self, batch: Batch, smoothing: float) -> tuple[Tensor, HaltingStatistics]:
        batch = moved(batch, self.compute.device)
        pad = self.model.config.pad
        # Without target lengths, the attention mask is a plain causal mask, for which fused kernels exist.
        options = {"target_lengths": (batch.write != pad).sum(1)} if self.model.needs_lengths else {}
        options |= {} if batch.offset is None else {"offset": batch.offset}
        hidden, halting = self._forward_states(batch.source, batch.source_lengths, batch.read, **options)  # (B, Tt, D)
        loss = smoothed_cross_entropy(
            hidden.flatten(0, 1), self.model.output_weight, self.model.output_bias, batch.write.flatten(),
            smoothing=smoothing, pad=pad,
        )  # fmt: skip
        return loss, halting
