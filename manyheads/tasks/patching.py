"""The methods `patch` and `logit_attribution` of predictors with a single prediction."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from manyheads.analysis.logit_attribution import LogitAttribution, attribute_logits
from manyheads.analysis.patching import Patching, patch
from manyheads.analysis.readout import Readout
from manyheads.calls import checked_methods
from manyheads.core.runtime import ComputeConfig


@checked_methods
class Patches:
    """Predictor that finds the activations which cause its prediction: a label, a masked word or the next token."""

    compute: ComputeConfig
    readout: Callable[..., Readout]

    def patch(
        self, clean: str | Path, corrupt: str | Path, *, target: str | None = None, against: str | None = None
    ) -> Patching:
        """Return the effect of each activation of the clean run, patched into the run on the corrupt input.

        clean, corrupt   inputs with the same number of tokens: texts, or image files
        target, against  token or label whose logit is measured, and the one whose logit is subtracted. By default, the
                         most likely ones for the clean and for the corrupt input

        Raises UserError for inputs of different lengths, a target that is no single token, and a model without
        residual stream.

            >>> found = gpt.patch("the cat", "the dog")
            >>> found["heads"].shape  # (layers, heads)
            (2, 2)
        """
        with self.compute.settings():
            return patch(self.readout(clean), self.readout(corrupt), target, against)

    def logit_attribution(
        self, text: str | Path, *, target: str | None = None, against: str | None = None, scale: bool = True
    ) -> LogitAttribution:
        """Return the contributions of embeddings, heads and feed-forward networks to a logit.

        target, against  token or label whose logit is explained, by default the most likely one, and one whose logit is
                         subtracted, by default none
        scale            True to apply the scale of the final norm, so that the contributions add up to the logit

        Raises UserError for a model with a norm after each sublayer, or whose output layers are not linear.

            >>> found = gpt.logit_attribution("the cat")
            >>> bool(abs(found["layers"].sum() + found["rest"].sum() - found.value) < 1e-4)
            True
        """
        with self.compute.settings():
            return attribute_logits(self.readout(text), target, against, scale=scale)
