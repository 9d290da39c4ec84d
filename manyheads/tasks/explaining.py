"""The method `explain` of predictors for texts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from manyheads.analysis.explanations import Explanation, explain
from manyheads.analysis.readout import Readout
from manyheads.calls import checked_methods
from manyheads.core.runtime import ComputeConfig
from manyheads.errors import UserError


@checked_methods
class ExplainsTexts:
    """Predictor that explains its prediction for a text: a label, a masked word or the next token."""

    path: Path
    compute: ComputeConfig
    reads_pairs: bool
    readout: Callable[..., Readout]

    def explain(
        self, text: str, pair: str | None = None, *, target: str | None = None, method: str | None = None,
        steps: int | None = None, truncate: bool = False,
    ) -> Explanation:  # fmt: skip
        """Return the contribution of each token of a text, or of a pair of texts, to the prediction of a target.

        target    name of a label, or a token of the vocabulary. By default, the model's prediction
        method    name of the method, see `manyheads.analysis.explanations`. By default, "integrated-gradients"
        steps     number of points of integrated gradients. By default, 50
        truncate  if True, cut a text that is longer than the model's limit. If False, such a text raises UserError

            >>> found = classifier.explain("the cat", target="positive")
            >>> found.side.tokens
            ('[CLS]', 'the', 'cat', '[SEP]')
            >>> bert.explain("the [MASK] sat", target="cat").target
            'cat'
        """
        if pair is not None and not self.reads_pairs:
            raise UserError(f"{self.path}: this model reads single texts, not pairs")
        readout = self.readout(text, *([] if pair is None else [pair]), truncate=truncate)
        with self.compute.settings():
            return explain(readout, target=target, method=method, steps=steps)
