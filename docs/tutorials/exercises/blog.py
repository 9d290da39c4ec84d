"""Checks of the exercises in the tutorial about the blog."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from manyheads.core.attention import Attention
from manyheads.core.block import Block
from manyheads.core.masks import Mask
from manyheads.core.positions import sinusoidal

from .checking import Mistake, call, compare, compare_numbers, exercise, kind, numbers

LENGTH = 8  # digits that the decoder of the broken mask reads


@exercise
def map_shapes(answer: object) -> str:
    """Shapes of the attention maps of a translator: encoder, decoder, and cross-attention."""
    if not isinstance(answer, list | tuple):
        raise Mistake(f"expected a list of three shapes, found {kind(answer)}.")
    if len(answer) != 3:
        raise Mistake(f"expected three shapes of four numbers, found {len(answer)}.")
    names = ("the encoder", "the decoder", "the cross-attention")
    shapes = [numbers(shape, 4, name) for shape, name in zip(answer, names, strict=True)]
    right = [(3, 8, 9, 9), (3, 8, 7, 7), (3, 8, 7, 9)]
    mistakes: dict[str, tuple[float | None, ...]] = {
        "the order is batch, heads, queries, keys.": (8, 3, None, None),
        "a map has a number for each pair of words. The width of the model, 512, is not in its shape.": (
            3,
            8,
            None,
            512,
        ),
        "a map has a number for each pair of words. The width of a head, 64, is not in its shape.": (3, 8, None, 64),
        "a row for each query: the queries of the cross-attention are the 7 target words.": (3, 8, 9, 7),
    }
    for found, expected, name in zip(shapes, right, names, strict=True):
        for hint, wrong in mistakes.items():
            if found != expected and all(other in (None, value) for value, other in zip(found, wrong, strict=True)):
                raise Mistake(f"{name}: {hint}")
        if found != expected:
            raise Mistake(f"{name}: the queries are the words that look, and the keys are the words that they look at.")
    return "only the cross-attention has maps that are not square."


@exercise
def stable_softmax(answer: object) -> str:
    """Softmax of some scores that does not overflow, with the sum that the blog forgets."""
    for scores in (torch.tensor([1.0, -2.0, 0.5, 3.0]), torch.tensor([1000.0, 998.0, -1000.0, 999.0])):
        powers = (scores - scores.max()).exp()
        mistakes = {
            "the sum below the fraction line is missing, as in the blog. The weights must add up to 1.": scores.exp(),
            "the sum is missing. Divide by it after the subtraction of the maximum.": powers,
            "the scores are divided by their sum. Take the exponentials first.": scores / scores.sum(),
            "this divides by the largest exponential. Divide by the sum of all.": scores.exp() / scores.exp().max(),
            "the exponentials are divided by the sum of the scores.": scores.exp() / scores.sum(),
            "a division makes the scores more equal, so the weights change. Subtract a number instead.": (
                (scores / scores.max()).softmax(0)
            ),
            "a division by 1000 makes the scores more equal, so the weights change. Subtract a number instead.": (
                (scores / 1000).softmax(0)
            ),
            "this is a mean of the exponentials. Divide by their sum.": scores.exp() / len(scores),
        }
        nan = "The exponential of 1000 is infinite. Subtract the largest score from all scores first."
        compare(call(answer, scores), scores.softmax(0), mistakes, nan=nan)
    return "the subtraction changes no weight, because it divides all exponentials by the same number."


@exercise
def encoding(answer: object) -> str:
    """Position encoding of the blog: (length, width)."""
    length, width = 12, 10
    right = sinusoidal(length, width, "interleaved")
    pairs = torch.arange(0, width, 2, dtype=torch.float64)
    position = torch.arange(length, dtype=torch.float64)[:, None]

    def table(position: Tensor, exponents: Tensor, base: float = 10_000, joined: bool = False) -> Tensor:
        angle = position / base ** (exponents / width)
        parts = (angle.sin(), angle.cos())
        return torch.cat(parts, 1) if joined else torch.stack(parts, -1).flatten(1)

    sine_first = right.unflatten(1, (-1, 2))
    mistakes = {
        "sine and cosine must alternate. Here all sines come first.": table(position, pairs, joined=True),
        "sine and cosine are exchanged: dimension 0 is a sine.": sine_first.flip(-1).flatten(1),
        "i counts pairs. Here it counts dimensions, so the cosine of a pair has another exponent than its sine.": (
            sinusoidal(length, width, "lecture")
        ),
        "the exponent is 2 i / d. The factor 2 is missing.": table(position, pairs / 2),
        "the exponent is 2 i / d. The factor 2 is there twice.": table(position, 2 * pairs),
        "positions are counted from 0. Here they begin with 1.": table(position + 1, pairs),
        "the base is 10,000.": table(position, pairs, 1000),
        "the position is multiplied by the power. Divide by it.": table(position, -pairs),
        "the table is transposed: it needs a row for each position.": right.T,
        "there are only sines. Odd dimensions are cosines.": torch.stack(2 * [sine_first[..., 0]], -1).flatten(1),
    }
    compare(call(answer, length, width), right, mistakes, tolerance=1e-4)
    return "each pair of dimensions is a point on a circle."


@exercise
def causal_scores(answer: object) -> str:
    """Scores (n, n) with minus infinity for all keys after the query."""
    scores = torch.randn(5, 5)
    later = torch.ones(5, 5).triu(1).bool()
    hidden = float("-inf")
    mistakes = {
        "each word must see itself. The mask hides the diagonal, too.": scores.masked_fill(
            later | torch.eye(5).bool(), hidden
        ),
        "the mask is transposed: it hides the earlier words and shows the later ones.": scores.masked_fill(
            later.T, hidden
        ),
        "the mask is inverted: it hides the allowed words.": scores.masked_fill(~later, hidden),
        "one later word is still visible. Hide all keys with a larger index than the query.": (
            scores.masked_fill(torch.ones(5, 5).triu(2).bool(), hidden)
        ),
        "a score of 0 is not hidden: its exponential is 1. Use minus infinity.": scores.masked_fill(later, 0),
        "nothing is hidden.": scores,
        "these are weights. Return the scores with the mask; the softmax comes later.": (
            scores.masked_fill(later, hidden).softmax(-1)
        ),
        "these are weights without a mask. Return the scores with the mask.": scores.softmax(-1),
        "this is the mask. Return the scores with the mask.": torch.zeros(5, 5).masked_fill(later, hidden),
    }
    found = call(answer, scores)
    if isinstance(found, Tensor) and found.shape == scores.shape and found.is_floating_point():
        for hint, wrong in mistakes.items():
            if torch.equal(found.exp(), wrong.exp()):
                raise Mistake(hint)
        if found.isnan().any():
            raise Mistake(
                "the result contains NaN. Zero times infinity is NaN: replace the scores, do not multiply them."
            )
        found = found.softmax(-1)
    compare(found, scores.masked_fill(later, hidden).softmax(-1), {})
    return "after the softmax, the weights of all later words are 0."


class Decoder(nn.Module):
    """One block of attention that reads digits and predicts the next digit at each position.

    allowed  table (LENGTH, LENGTH), True where a position may attend to another
    """

    def __init__(self, allowed: Tensor) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(10, 32), nn.Embedding(LENGTH, 32)
        self.block, self.output, self.allowed = Block(Attention(32, 2), None), nn.Linear(32, 10), allowed

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        x = self.words(tokens) + self.places.weight[:length]
        logits: Tensor = self.output(self.block(x, mask=Mask(dense=self.allowed[:length, :length])))
        return logits


@exercise
def broken_mask(answer: object) -> str:
    """A mask with which a decoder reports an impossible loss for random digits."""
    if not isinstance(answer, Mask):
        raise Mistake(f"expected a Mask, found {kind(answer)}. Write Mask(...), without a setting for no restriction.")
    try:
        table = answer.materialize(LENGTH, LENGTH, torch.device("cpu"))
        everything = torch.ones(1, 1, LENGTH, LENGTH, dtype=torch.bool)
        allowed = (everything if table is None else table.expand_as(everything))[0, 0]
    except (RuntimeError, ValueError) as error:
        raise Mistake(f"the mask does not fit 8 digits: {error}.") from None
    if hidden := LENGTH - 1 - int(allowed.diagonal(1).sum()):
        what = "everywhere" if hidden == LENGTH - 1 else f"at {hidden} of {LENGTH - 1} positions"
        raise Mistake(f"the mask hides the next digit {what}, so the loss is honest there. Let each position see it.")
    model = Decoder(allowed)
    adam = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(150):
        digits = torch.randint(10, (32, LENGTH + 1))
        loss = F.cross_entropy(model(digits[:, :-1]).flatten(0, 1), digits[:, 1:].flatten())
        adam.zero_grad()
        loss.backward()
        adam.step()
    digits = torch.randint(10, (500, LENGTH))
    with torch.no_grad():
        reported = F.cross_entropy(model(digits)[:, :-1].flatten(0, 1), digits[:, 1:].flatten())
        steps = [model(digits[:, :t])[:, -1] for t in range(1, LENGTH)]
        honest = F.cross_entropy(torch.stack(steps, 1).flatten(0, 1), digits[:, 1:].flatten())
    return (
        f"the decoder reports a loss of {reported:.3f}, although random digits allow no less than 2.303. "
        f"If it reads only the earlier digits, its loss is {honest:.2f}."
    )


def program(ends_after: int) -> Callable[[list[int]], Tensor]:
    """Return a decoder whose next token depends on all tokens so far. After some tokens, it ends with token 1."""

    def next_scores(tokens: list[int]) -> Tensor:
        scores = torch.zeros(20)
        scores[2 + sum(tokens) % 18] = 2.0
        scores[1] = 5.0 if len(tokens) > ends_after else -5.0
        return scores

    return next_scores


@exercise
def greedy(answer: object) -> str:
    """Greedy search: the tokens that a decoder writes until it ends, or until a limit."""
    start, end = 7, 1
    for ends_after, limit in ((4, 10), (9, 5)):
        next_scores = program(ends_after)
        tokens = [start]
        while len(tokens) <= max(limit, ends_after) + 3:
            tokens.append(int(next_scores(tokens).argmax()))
        right = tokens[1 : min(ends_after, limit) + 1]
        last = [start]
        for _ in range(limit):
            last.append(int(next_scores(last[-1:]).argmax()))
        found = call(answer, next_scores, start, end, limit)
        if isinstance(found, Tensor):
            found = found.tolist()
        mistakes = {
            "the start token is not part of the translation.": [start, *right],
            "the end token is not part of the translation.": [*right, end],
            "the start and the end token are not part of the translation.": [start, *right, end],
            "the search does not stop at the end token.": tokens[1 : limit + 1],
            "the search ignores the limit.": tokens[1 : ends_after + 1],
            "one token is missing. The limit counts the written tokens without the start token.": right[:-1],
            "one token too many. The limit counts the written tokens without the start token.": tokens[
                1 : len(right) + 2
            ],
            "the decoder gets only the last token. It needs all tokens so far.": last[1 : limit + 1],
        }
        for hint, wrong in mistakes.items():
            if found == wrong and wrong != right:
                raise Mistake(hint)
        if isinstance(found, list | tuple) and [start, *right] == list(found)[: len(right) + 1]:
            raise Mistake("the start token is not part of the translation.")
        compare_numbers(numbers(found, len(right), "the tokens"), right, {}, [f"token {i}" for i in range(len(right))])
    return "greedy_decode of PyTorch's tutorial does the same."
