"""Text classifier as a teacher, as in Abnar 2020, where a Transformer learns from an LSTM."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from tokenizers import Tokenizer
from torch import Tensor

from manyheads import directory
from manyheads.core.config import Config
from manyheads.core.interface import Model
from manyheads.data.readers.labeled import Labeled
from manyheads.errors import UserError
from manyheads.runs.fine_tuning import tokenizer_of
from manyheads.tasks.classification.recipes import ClassificationConfig
from manyheads.tasks.distillation import Distillation, check_labels

COMPARED_TEXTS = 100  # number of training texts whose tokens must be equal for teacher and student


@dataclass(frozen=True)
class TextTeacher:
    """Trained text classifier that is the teacher in knowledge distillation. It reads the student's tokens."""

    model: Model[Config]
    tokenizer: Tokenizer
    distillation: Distillation

    @classmethod
    def load(cls, config: ClassificationConfig) -> TextTeacher:
        """Load the teacher that the settings name. Raises UserError if it has no tokenizer."""
        assert config.teacher is not None
        loaded = directory.load(config.teacher)
        return cls(loaded.model, tokenizer_of(loaded), Distillation.of(config))

    def check(
        self, config: ClassificationConfig, labels: tuple[str, ...], tokenizer: Tokenizer, length: int, train: Labeled
    ) -> None:
        """Raise UserError if the teacher has other labels or tokens than the student, or reads only shorter texts.

        tokenizer  tokenizer of the student
        length     maximum number of tokens of a text that the student reads
        """
        check_labels(config, self.model.labels, labels)
        own, others = (
            [t.encode(text).ids for text in train.texts[:COMPARED_TEXTS]] for t in (self.tokenizer, tokenizer)
        )
        if own != others or self.tokenizer.get_vocab() != tokenizer.get_vocab():
            sizes = (f"{t.get_vocab_size():,} tokens" for t in (self.tokenizer, tokenizer))
            raise UserError(
                f"{config.teacher}: the teacher has another vocabulary ({next(sizes)}) than the student "
                f"({next(sizes)}). Without --init, a student takes the vocabulary of its teacher"
            )
        if self.model.max_positions is not None and self.model.max_positions < length:
            raise UserError(
                f"{config.teacher}: the teacher reads {self.model.max_positions} tokens of a text, the student "
                f"{length}: set max_length={self.model.max_positions}"
            )
        if train.weights:
            raise UserError(f"{config.data}: weights of texts have no effect with a teacher; omit columns.weight")

    @torch.no_grad()
    def logits(self, ids: Tensor, lengths: Tensor, segments: Tensor | None) -> Tensor:
        """Return the teacher's logits (B, L) for padded texts (B, T)."""
        self.model.eval()
        found: Tensor = self.model(ids, lengths, segments)
        return found.float()
