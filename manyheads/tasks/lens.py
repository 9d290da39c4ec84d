"""Lens of predictors that read texts: the logit lens, and the training of a tuned lens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import ClassVar

from tokenizers import Tokenizer
from torch import Tensor

from manyheads.analysis.lens import LayerStates, Lens, Tuned, TunedLens, layer_states, tune
from manyheads.calls import checked_methods
from manyheads.core.interface import Generates
from manyheads.errors import UserError
from manyheads.tasks.inputs import rows_of
from manyheads.tasks.predictor import M, ModelWithTokenizer
from manyheads.tasks.tokenized_text import displayed

MAX_STEPS = 100_000


@checked_methods
class HasLens(ModelWithTokenizer[M]):
    """Predictor of words with a logit lens, which can be tuned."""

    stack: ClassVar = "decoder"  # name of the stack of layers that predicts the words

    def tune_lens(self, texts: Sequence[str], *, steps: int = 250, seed: int = 0) -> TunedLens:
        """Train a tuned lens on texts. The last tenth of the tokens is held out to measure it.

        texts  texts. Only about the first 32,000 tokens are used. A masked language model and a translator cut each
               text to their limit
        steps  number of training steps, of 256 positions each

            >>> tuned = gpt.tune_lens(["the cat sat on the mat"] * 20, steps=5)
            >>> tuned.save("tuned.safetensors")
            >>> lens = gpt.lens("the cat", tuned="tuned.safetensors")
        """
        if not 1 <= steps <= MAX_STEPS:
            raise UserError(f"steps is {steps}: expected 1 to {MAX_STEPS:,}")
        with self.compute.autocast():
            states = map(self._states, self._tuning_inputs(rows_of(texts)[0]))
            return tune(states, self.model, str(self.path), steps=steps, seed=seed)

    def _tuning_inputs(self, texts: Sequence[str]) -> Iterable[Sequence[Tensor | None]]:
        """Return the inputs of the model for texts, which are cut or divided at the model's limit."""
        raise NotImplementedError

    def _project(self, states: Tensor) -> Tensor:
        """Return the logits of normalized states."""
        assert isinstance(self.model, Generates)
        return self.model.project(states)

    def _states(self, inputs: Sequence[Tensor | None]) -> LayerStates:
        inputs = [tensor if tensor is None else tensor.to(self.compute.device) for tensor in inputs]
        return layer_states(self.model, self.stack, self._project, *inputs)

    def _lens(
        self, inputs: Sequence[Tensor | None], tokens: Sequence[str], title: str, top: int,
        tuned: Tuned, tokenizer: Tokenizer,
    ) -> Lens:  # fmt: skip
        """Return the lens of an input. `tokenizer` decodes the words that the model predicts."""
        lens = TunedLens.load(tuned, self.model) if isinstance(tuned, str | Path) else tuned
        with self.compute.autocast():
            name = partial(displayed, tokenizer)
            return Lens.of(self._states(inputs), str(self.path), title, tokens, name, top, tuned=lens)
