"""Model with the settings to run it with, in the form that predictors and searches use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from torch import Tensor, nn

from manyheads.core.config import Precision
from manyheads.core.logits import reduce_logits
from manyheads.core.runtime import ComputeConfig

M = TypeVar("M", bound=nn.Module)
R = TypeVar("R")
S = TypeVar("S")


class CompiledModel(Generic[M]):
    """Model prepared for inference, with its compute settings.

    Subclasses in `manyheads.inference` have faster methods for decoding. Calls that do not decode may use `module`
    directly, because it contains the faster modules.

    module     model, or a copy in which faster modules replace some modules
    compute    settings of every call; the caller applies `compute.autocast()`
    precision  precision of the fused kernels. If None, all modules are PyTorch's
    """

    precision: Precision | None = None

    def __init__(self, module: M, compute: ComputeConfig) -> None:
        self.module, self.compute = module, compute
        self._model: Any = module  # its methods depend on the kind of model

    @property
    def config(self) -> Any:
        return self._model.config

    @property
    def source_pad(self) -> int:
        """Return the padding token of the sources of an encoder-decoder."""
        pad: int = self._model.source_pad
        return pad

    def __call__(self, *inputs: Tensor | None) -> Any:
        return self.module(*inputs)

    def start(self, *inputs: Any) -> Any:
        """Return an empty key-value cache for `step`.

        inputs  number of rows and capacity for a decoder; source tokens, their lengths and capacity for an
                encoder-decoder
        """
        return self._model.start(*inputs)

    def step(self, tokens: Tensor, cache: Any, at: Tensor | None = None) -> Tensor:
        """Return the logits (B, T, V) after each of the next tokens (B, T). The cache contains the previous tokens.

        at  (B,) index of one token in each row. If given, only the logits (B, 1, V) after these tokens are returned
        """
        logits: Tensor = self._model.step(tokens, cache, *(() if at is None else (at,)))
        return logits

    def reduce(self, logits: Tensor, suppress: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
        """Return the logits (R, V) without suppressed ids, the maxima of their blocks, and the log-sum-exp of each row.

        The logits may be changed in place.
        """
        return reduce_logits(logits, suppress)

    def map_parts(self, function: Callable[[list[R]], list[S]], rows: list[R], min_rows: int) -> list[S]:
        """Return the result of function(rows). If it is faster, several workers compute parts of the rows.

        min_rows  minimum number of rows for each worker
        """
        return function(rows)
