"""Training task for BERT's pretraining: masked words and next-sentence prediction (Devlin 2018, section 3.1)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from manyheads import directory
from manyheads.core.runtime import ComputeConfig
from manyheads.data.batching import token_batches
from manyheads.data.text.pretraining import Epoch, Example, PretrainingData
from manyheads.data.text.tokenizers import with_special_tokens
from manyheads.models.bert import Bert
from manyheads.tasks.outputs import moved, padded
from manyheads.tasks.text_objective import TextObjective
from manyheads.training.distributed_map import distributed_map
from manyheads.training.loss import smoothed_cross_entropy, upcast
from manyheads.training.objective import Better, Loss, LossPart


@dataclass(frozen=True)
class Batch:
    """Batch of padded training examples.

    ids       (B, T) token ids
    lengths   (B,) number of tokens of each example
    segments  (B, T) segment ids
    at        (N,) indices of the tokens to predict among the B * T tokens
    answers   (N,) original ids of these tokens, which the model predicts
    follows   (B,) 0 if the second text of a pair follows the first, otherwise 1; None if examples are not pairs
    """

    ids: Tensor
    lengths: Tensor
    segments: Tensor
    at: Tensor
    answers: Tensor
    follows: Tensor | None

    @property
    def items(self) -> int:
        return len(self.answers)

    @property
    def counts(self) -> tuple[int, ...]:
        """Number of masked words in the batch, and number of text pairs if there are any."""
        return (self.items,) if self.follows is None else (self.items, len(self.follows))

    @classmethod
    def of(cls, examples: Sequence[Example], padding: int) -> Batch:
        ids, lengths = padded([e.tokens for e in examples], padding)
        follows = [e.follows for e in examples]
        return cls(
            ids,
            lengths,
            padded([e.segments for e in examples], 0)[0],
            torch.tensor([row * ids.shape[1] + at for row, e in enumerate(examples) for at in e.positions]),
            torch.tensor([answer for e in examples for answer in e.answers]),
            None if None in follows else torch.tensor([int(not f) for f in follows]),
        )


@dataclass(eq=False)
class MaskedLMObjective(TextObjective[Bert, PretrainingData]):
    """Training task for BERT's pretraining.

    The loss is the mean loss of the masked words plus the mean loss of next-sentence prediction. Logits are computed
    only at the masked positions.
    """

    unit: ClassVar = "predictions"

    def __post_init__(self) -> None:
        assert self.model.config.head == ("pretraining" if self.train.rules.next_sentence else "masked_lm")
        super().__post_init__()
        self._encode = self.compute.compile(self.model.encode)

    @property
    def metrics(self) -> dict[str, Better]:
        metrics: dict[str, Better] = {"loss": "lower", "perplexity": "lower", "accuracy": "higher"}
        if self.validation.rules.next_sentence:
            metrics["next_sentence_accuracy"] = "higher"
        return metrics

    def batches(self, epoch: int) -> Sequence[Batch]:
        examples = self.train.epoch(epoch)
        pad = self.model.config.pad
        return self.lazy_batches(examples.lengths, epoch, lambda rows: Batch.of([examples[i] for i in rows], pad))

    def loss(self, batch: Batch) -> Loss:
        """Return the loss of the masked words of a batch, and of next-sentence prediction if examples are pairs.

        The loss of next-sentence prediction is an additional part of the result (`LossPart`).
        """
        batch = moved(batch, self.compute.device)
        states = self._encode(batch.ids, batch.lengths, batch.segments)  # (B, T, D)
        masked = self.model.transform_states(states.flatten(0, 1)[batch.at])  # (N, D)
        model = self.model
        words = smoothed_cross_entropy(
            masked, model.output_weight, model.output_bias, batch.answers, smoothing=0.0, pad=None
        )
        if batch.follows is None:
            return Loss(words, batch.items)
        assert model.next_sentence is not None
        logits = upcast(model.next_sentence(model.pool(states)))  # (B, 2)
        follows = F.cross_entropy(logits, batch.follows, reduction="sum")
        return Loss(words, batch.items, others=(LossPart(follows, len(batch.follows)),))

    def validate(self) -> dict[str, float]:
        """Return the validation metrics (`mean_scores`). Every validation uses the masks of the first epoch."""
        return mean_scores(list(scores(self.model, self.validation.epoch(0), self.compute, self.batch_tokens)))

    def save(self, out: Path) -> str:
        """Save the model with its tokenizer.

        The saved tokenizer reads [MASK] in a text as the mask token, as the method `fill` and other libraries require.
        """
        return directory.save(out, self.model, with_special_tokens(self.tokenizer, as_text=False))


class Score(NamedTuple):
    """Predictions for one pretraining example.

    example  example with its masked words
    loss     sum of the losses of the masked words
    words    id of the likeliest word for each mask
    """

    example: Example
    loss: float
    words: list[int]
    # True if next-sentence prediction is right for this example; None if the example is not a pair of texts.
    next_right: bool | None

    @property
    def right(self) -> int:
        return sum(word == answer for word, answer in zip(self.words, self.example.answers, strict=True))


@torch.inference_mode()
def scores(model: Bert, epoch: Epoch, compute: ComputeConfig, batch_tokens: int) -> Iterator[Score]:
    """Yield the predictions for every example, in the order of the batches. The model must be in eval mode."""

    def run_batch(rows: NDArray[np.int64]) -> list[Score]:
        examples = [epoch[int(row)] for row in rows]
        batch = moved(Batch.of(examples, model.config.pad), compute.device)
        with compute.autocast():
            states = model.encode(batch.ids, batch.lengths, batch.segments)
            logits = model.words(states.flatten(0, 1)[batch.at])  # (N, V)
        losses = F.cross_entropy(logits.float(), batch.answers, reduction="none").cpu()
        best = logits.argmax(-1).cpu()
        next_right: list[bool | None] = [None] * len(examples)
        if batch.follows is not None and model.next_sentence is not None:
            next_right = (model.next_sentence(model.pool(states)).argmax(-1) == batch.follows).tolist()
        counts = [len(example.answers) for example in examples]
        rows_of = zip(examples, losses.split(counts), best.split(counts), next_right, strict=True)
        return [Score(example, float(loss.sum()), words.tolist(), follows) for example, loss, words, follows in rows_of]

    for scored in distributed_map(
        token_batches(epoch.lengths, epoch.lengths, batch_tokens, seed=0, epoch=0), run_batch
    ):
        yield from scored


def mean_scores(scores: Sequence[Score]) -> dict[str, float]:
    """Return the metrics of masked-word and next-sentence prediction over all examples.

    `loss`, `perplexity` and `accuracy` are means over all masked words, `next_sentence_accuracy` is a mean over all
    pairs of texts.
    """
    masked = sum(len(score.words) for score in scores)
    loss = sum(score.loss for score in scores) / masked
    pairs = [score.next_right for score in scores if score.next_right is not None]
    return {
        "loss": loss,
        "perplexity": float(torch.tensor(loss).exp()),
        "accuracy": sum(score.right for score in scores) / masked,
        **({"next_sentence_accuracy": sum(pairs) / len(pairs)} if pairs else {}),
    }
