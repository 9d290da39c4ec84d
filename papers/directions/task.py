"""Training task for encoders that read a text from left to right, in both directions, or with two opposite LSTMs.

A linear classifier on the frozen features of each encoder measures their quality.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from manyheads.core.runtime import ComputeConfig
from manyheads.data.batching import Lazy, token_batches
from manyheads.data.readers.conll import Tagged
from manyheads.data.text.pretraining import Epoch, Example, PretrainingData
from manyheads.data.text.windows import word_windows
from manyheads.models.directions import Direction, DirectionalEncoder
from manyheads.tasks.outputs import outputs, padded
from manyheads.tasks.tagging.metrics import tagging_metrics
from manyheads.tasks.text_objective import TextObjective
from manyheads.training.distributed_map import distributed_map
from manyheads.training.loss import smoothed_cross_entropy
from manyheads.training.objective import Better, Loss
from manyheads.training.record import Metrics


@dataclass(frozen=True)
class Batch:
    """Batch of padded texts, as the encoder reads them: tokens (B, T) with lengths (B,).

    predicted  a pair for each direction of reading: indices of the tokens, among all B * T, at which a word is
               predicted, (N,), and ids of the words to predict, (N,)
    """

    ids: Tensor
    lengths: Tensor
    predicted: list[tuple[Tensor, Tensor]]

    @property
    def items(self) -> int:
        return sum(len(words) for _, words in self.predicted)

    @classmethod
    def of(cls, examples: Sequence[Example], reading: Direction, padding: int) -> Batch:
        ids, lengths = padded([e.tokens for e in examples], padding)
        starts = torch.arange(len(ids)) * ids.shape[1]
        masked = torch.cat([starts[row] + torch.tensor(e.positions) for row, e in enumerate(examples)])
        answers = torch.tensor([answer for e in examples for answer in e.answers])
        if reading == "bidirectional":
            return cls(ids, lengths, [(masked, answers)])
        text = ids.flatten().scatter(0, masked, answers)  # token ids of the text before masking
        at = torch.arange(ids.shape[1])
        # indices of all tokens except the last token of each text
        predicting = (at < lengths[:, None] - 1).flatten().nonzero().flatten()
        predicted = [(predicting, text[predicting + 1])]
        if reading == "two_lstms":
            predicted.append((predicting + 1, text[predicting]))
        return cls(text.view_as(ids), lengths, predicted)


@dataclass(eq=False)
class DirectionsTask(TextObjective[DirectionalEncoder, PretrainingData]):
    """Training task for encoders that read a text from left to right, in both directions, or with two opposite LSTMs.

    The loss is the mean cross-entropy of the predicted words. All three encoders read the same texts in the same
    batches. The bidirectional encoder predicts masked words. The left-to-right encoder predicts the next word. The two
    LSTMs predict the next word and the previous word.
    """

    unit: ClassVar = "predictions"
    metrics: ClassVar[Mapping[str, Better]] = {"loss": "lower"}

    def __post_init__(self) -> None:
        super().__post_init__()
        directions: Any = self.model.directions
        self._read: Any = self.compute.compile(directions)

    def batches(self, epoch: int) -> Sequence[Batch]:
        return self._batches(self.train.epoch(epoch), self.seed, epoch)

    def loss(self, batch: Batch) -> Loss:
        directions = self._read(batch.ids.to(self.compute.device), batch.lengths.to(self.compute.device))
        losses = [
            smoothed_cross_entropy(
                self.model.transform_states(features.flatten(0, 1)[at.to(self.compute.device)], direction),
                self.model.embedding.weight, self.model.output_bias, words.to(self.compute.device),
                smoothing=0.0, pad=None,
            )
            for direction, (features, (at, words)) in enumerate(zip(directions, batch.predicted, strict=True))
        ]  # fmt: skip
        return Loss(torch.stack(losses).sum(), batch.items)

    def validate(self) -> dict[str, float]:
        """Return the validation loss per predicted word.

        The losses of the three encoders are not comparable, because each encoder predicts different words.
        """

        def run_batch(batch: Batch) -> tuple[float, int]:
            with self.compute.autocast():
                return self.loss(batch).total.item(), batch.items

        totals, words = zip(*distributed_map(self._batches(self.validation.epoch(0), 0, 0), run_batch), strict=True)
        return {"loss": sum(totals) / sum(words)}

    @property
    def tokens_per_prediction(self) -> float:
        """Mean number of tokens that the encoder reads for each predicted word."""
        batches = list(self._batches(self.validation.epoch(0), 0, 0))
        return sum(int(batch.lengths.sum()) for batch in batches) / sum(batch.items for batch in batches)

    def _batches(self, examples: Epoch, seed: int, epoch: int) -> Sequence[Batch]:
        rows = token_batches(examples.lengths, examples.lengths, self.batch_tokens, seed=seed, epoch=epoch)
        c = self.model.config
        return Lazy(rows, lambda batch: Batch.of([examples[i] for i in batch], c.reading, c.pad))


def probe(
    model: DirectionalEncoder,
    tokenizer: Tokenizer,
    train: Tagged,
    test: Tagged,
    compute: ComputeConfig,
    *,
    context: bool,
) -> Metrics:
    """Train a linear classifier on the features of a frozen encoder, and return the tagging metrics of the classifier.

    The features of a word are those of its first token.

    context  false: use only the token embeddings, which do not depend on the surrounding text
    """
    model.eval()
    labels = sorted({tag for tags in (*train.tags, *test.tags) for tag in tags})
    index = {label: i for i, label in enumerate(labels)}
    train_labels = torch.tensor([index[tag] for tags in train.tags for tag in tags])
    features, test_features = (
        word_features(model, tokenizer, tagged.words, compute, context=context) for tagged in (train, test)
    )
    best = iter(linear_probe(features, train_labels, test_features, len(labels)).tolist())
    return tagging_metrics([[labels[next(best)] for _ in words] for words in test.words], test.tags)


def word_features(
    model: DirectionalEncoder,
    tokenizer: Tokenizer,
    sentences: Sequence[Sequence[str]],
    compute: ComputeConfig,
    *,
    context: bool,
) -> Tensor:
    """Return the encoder's features for all words of all sentences, (words, D), on the CPU."""
    c = model.config
    features = [torch.zeros(len(sentence), c.width) for sentence in sentences]
    windows = word_windows(tokenizer, sentences, c.max_positions)
    forward = model if context else (lambda ids, lengths: model.embedding(ids))
    for i, output in outputs(forward, compute, [window.ids for window in windows], c.pad):  # (T, D)
        window = windows[i]
        features[window.sentence][window.words] = output[window.positions]
    return torch.cat(features)


def linear_probe(features: Tensor, labels: Tensor, test: Tensor, classes: int, decay: float = 1e-4) -> Tensor:
    """Predict labels for the rows of `test` (M, D), by softmax regression trained on features (N, D) with labels (N,).

    All features are scaled to zero mean and unit variance, and `decay` is the weight of the L2 penalty. The loss is
    convex and L-BFGS runs almost to the minimum, so the result needs no seed or learning rate.
    """
    mean, deviation = features.mean(0), features.std(0).clamp(min=1e-6)
    train, test = ((x - mean) / deviation for x in (features, test))
    weight = torch.zeros(train.shape[1], classes, requires_grad=True)
    bias = torch.zeros(classes, requires_grad=True)
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> float:
        optimizer.zero_grad()
        loss = F.cross_entropy(train @ weight + bias, labels) + decay * weight.square().sum()
        loss.backward()
        return float(loss.detach())

    optimizer.step(closure)
    with torch.no_grad():
        return (test @ weight + bias).argmax(1)
