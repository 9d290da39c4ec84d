"""Base class of the training tasks of models that read texts of different lengths."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from tokenizers import Tokenizer

from manyheads import directory
from manyheads.core.config import Config
from manyheads.core.interface import Model
from manyheads.core.runtime import ComputeConfig
from manyheads.data.batching import Lazy, token_batches

B = TypeVar("B")
D = TypeVar("D")
M = TypeVar("M", bound=Model[Config])


@dataclass(eq=False)
class TextObjective(Generic[M, D]):
    """Training task of a model that reads texts, in padded batches of texts with similar lengths.

    batch_tokens  maximum number of tokens in a micro-batch, padding included
    """

    model: M
    tokenizer: Tokenizer
    train: D
    validation: D
    _: KW_ONLY
    compute: ComputeConfig
    batch_tokens: int
    seed: int

    def __post_init__(self) -> None:
        self.model.to(self.compute.device)

    def lazy_batches(self, lengths: ArrayLike, epoch: int, make: Callable[[NDArray[np.int64]], B]) -> Lazy[B]:
        """Return the batches of an epoch. The function `make` makes a batch from the indices of its texts.

        lengths  number of tokens of each text
        """
        return Lazy(token_batches(lengths, lengths, self.batch_tokens, seed=self.seed, epoch=epoch), make)

    def save(self, out: Path) -> str:
        """Save the model with its tokenizer. Return the model type."""
        return directory.save(out, self.model, self.tokenizer)
