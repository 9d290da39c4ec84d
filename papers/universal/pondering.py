"""Number of steps that a Universal Transformer with adaptive halting takes for each token.

The tokens are those of a source text and of the translation of this text.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from manyheads.errors import UserError
from manyheads.models.universal import Universal
from manyheads.tasks.translation.predictor import Translator


@dataclass(frozen=True)
class Pondering:
    """Tokens of a text, with the number of steps that a Universal Transformer took for each token.

    Tokens and steps are grouped by stack of layers ("encoder", "decoder").
    """

    stacks: dict[str, list[tuple[str, int]]]

    def __str__(self) -> str:
        """Return two lines of text for each stack of layers: the tokens, and the number of steps below each token."""
        lines = []
        for stack, positions in self.stacks.items():
            columns = [(token, str(steps)) for token, steps in positions]
            widths = [max(map(len, column)) for column in columns]
            for name, row in zip((stack, "steps"), zip(*columns, strict=True), strict=True):
                cells = (f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True))
                lines.append(f"{name:8}" + " ".join(cells))
        return "\n".join(lines)


@torch.inference_mode()
def pondering(translator: Translator, source: str, target: str | None = None) -> Pondering:
    """Return the number of steps that a Universal Transformer takes for each token of a text and of its translation.

    Without adaptive halting, every position takes the same number of steps. Raises UserError for a model that is not a
    Universal Transformer, and for texts that the model cannot read.

    target  translation to use; None: the greedy translation
    """
    model = translator.model
    if not isinstance(model, Universal):
        raise UserError(f"{translator.path} is a {translator.family} model: expected a Universal Transformer")
    target = translator.translate(source, beam=1) if target is None else target
    sides = ((translator.tokenizer, source), (translator.target_tokenizer, target))
    ids = [tokenizer.encode(text).ids for tokenizer, text in sides]
    inputs = [ids[0], [model.config.start, *ids[1][:-1]]]
    source_ids, decoder_input = (torch.tensor([tokens], device=translator.compute.device) for tokens in inputs)
    with translator.compute.autocast():
        _, halting = model.forward_with_halting(source_ids, None, decoder_input)
    stacks = {}
    for (tokenizer, _), stack, tokens in zip(sides, ("encoder", "decoder"), inputs, strict=True):
        steps = halting[stack].steps[0].int().tolist() if halting else [model.config.steps] * len(tokens)
        stacks[stack] = list(zip(map(str, map(tokenizer.id_to_token, tokens)), steps, strict=True))
    return Pondering(stacks)
