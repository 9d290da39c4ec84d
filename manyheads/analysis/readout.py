"""One prediction of a model for one input: what patching, attribution and explanations measure.

`manyheads.load(MODEL).readout(...)` returns it for the next token of a language model, the masked word of a masked
language model, or the label of a classifier.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from manyheads.analysis.maps.sides import Side
from manyheads.core.config import TargetKind
from manyheads.errors import UserError, nearest


@dataclass(frozen=True)
class Names:
    """Names of the outputs of a prediction: words of a vocabulary, or labels.

    name   function from the index of an output to its name
    index  function from a name to the index of the output. It raises UserError for a name that is not one output
    """

    name: Callable[[int], str]
    index: Callable[[str], int]

    @classmethod
    def of_labels(cls, labels: Sequence[object]) -> Names:
        """Return the names of labels."""
        names = [str(label) for label in labels]

        def index(name: str) -> int:
            if name not in names:
                raise UserError(f"the model has no label {name!r}: {nearest(name, names)}")
            return names.index(name)

        return cls(names.__getitem__, index)


@dataclass(frozen=True)
class Readout:
    """One input of a model, and the logits of the one prediction that is measured.

    model     the model, on its device and in eval mode
    inputs    arguments of the model's `forward` for the input, a batch of one: (1, T) token ids, (1, C, Y, X) pixels
    select    function from the output of `forward`, for any batch size B, to the logits (B, V) of the prediction
    names     names of the V outputs
    position  index of the token from whose state the model predicts; None if it reads several tokens
    side      names of the positions: tokens of the text, or patches of the image. None for a network without positions
    source    name of the model directory
    title     description of the input
    picture   the image as the model sees it, (Y, X, C); None for a text
    kind      "classes" if a softmax of the logits gives the probabilities, "multi-label" if a sigmoid does,
              "regression" if the output is a number
    embedding  module from token ids to embeddings (B, T, D), through which gradients flow; None if there is none
    """

    model: nn.Module
    inputs: tuple[Tensor | None, ...]
    select: Callable[[Tensor], Tensor]
    names: Names
    position: int | None
    side: Side | None
    source: str
    title: str
    picture: NDArray[np.uint8] | None = None
    kind: TargetKind = "classes"
    embedding: nn.Module | None = None

    def logits(self, *inputs: Tensor | None) -> Tensor:
        """Return the logits (B, V) of the prediction. By default, for the input of this readout, with B = 1."""
        return self.select(self.model(*(inputs or self.inputs)))

    def probability(self, logits: Tensor, index: int) -> float | None:
        """Return the probability of an output for logits (V,). None if the model predicts a number."""
        if self.kind == "regression":
            return None
        return float((logits.sigmoid() if self.kind == "multi-label" else logits.softmax(-1))[index])

    def repeated(self, count: int) -> tuple[Tensor | None, ...]:
        """Return the inputs as a batch of `count` equal rows."""
        return tuple(None if part is None else part.expand(count, *part.shape[1:]) for part in self.inputs)
