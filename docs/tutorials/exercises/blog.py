"""Checks of the exercises in the tutorial about the blog."""

from __future__ import annotations

from collections.abc import Callable
from math import log

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from manyheads.core.attention import Attention
from manyheads.core.block import Block
from manyheads.core.masks import Mask
from manyheads.core.positions import sinusoidal

from .checking import Mistake, Operations, call, compare, equal, exercise, is_vector, kind, numbers

LENGTH = 8  # digits that the decoder of the broken mask reads


@exercise
def map_shapes(answer: object) -> str:
    """Shapes of the attention maps of a translator: encoder, decoder, and cross-attention."""
    if not isinstance(answer, list | tuple):
        raise Mistake(f"expected a list of three shapes, found {kind(answer)}.")
    if len(answer) != 3:
        raise Mistake(f"expected three shapes of four numbers, found {len(answer)}.")
    right = {"the encoder": (3, 8, 9, 9), "the decoder": (3, 8, 7, 7), "the cross-attention": (3, 8, 7, 9)}
    shapes = [numbers(shape, 4, name) for shape, name in zip(answer, right, strict=True)]
    for found, (name, expected) in zip(shapes, right.items(), strict=True):
        for other, shape in right.items():
            if found == shape != expected:
                raise Mistake(f"{name}: this is the shape of the map of {other}.")
        batch, heads, queries, keys = found
        mistakes = {
            "the order is batch, heads, queries, keys.": (
                (batch, heads) == (8, 3) or (sorted(found) == sorted(expected) and (batch, heads) != (3, 8))
            ),
            "the first number is the batch, and the batch has 3 sentences.": batch != 3,
            "each of the 8 heads has its own map. The second number is 8.": heads != 8,
            "a map has a number for each pair of words. The width of the model, 512, is not in its shape.": (
                512 in (queries, keys)
            ),
            "a map has a number for each pair of words. The width of a head, 64, is not in its shape.": (
                64 in (queries, keys)
            ),
            "the keys are source words or target words, and never both together.": 16 in (queries, keys),
            "a row for each query: the queries of the cross-attention are the 7 target words.": (
                name == "the cross-attention" and queries == 9
            ),
            "the queries are the words that look, and the keys are the words that they look at.": found != expected,
        }
        for hint, is_made in mistakes.items():
            if is_made:
                raise Mistake(f"{name}: {hint}")
    return "only the cross-attention has maps that are not square."


@exercise
def stable_softmax(answer: object) -> str:
    """Softmax of some scores that does not overflow, with the sum that the blog forgets."""
    examples = [
        [1.0, -2.0, 0.5, 3.0],
        [1000.0, 998.0, -1000.0, 999.0],
        [-1000.0, -999.0, 1000.0, 999.0, -1000.0],  # the first, last, smallest, mean and median score are too small
        [-1000.0, -999.0, -998.5],  # all exponentials are 0
    ]
    scores = torch.tensor(examples[0])
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
    for example in examples:
        scores = torch.tensor(example)
        with Operations() as used:
            found = call(answer, scores)
        if forbidden := used.names & {"softmax", "log_softmax", "special_softmax", "special_log_softmax", "softmin"}:
            raise Mistake(f"your function calls {min(forbidden)}. Compute the exponentials and their sum.")
        nan = f"{used.nan} Subtract the largest score from all scores first." if used.nan else ""
        known = mistakes if example is examples[0] else {}
        if isinstance(found, Tensor) and found.shape == scores.shape and abs(found.sum() - 1) > 1e-3:
            known = known | {f"for the scores {example}, the weights add up to {found.sum():.3g} and not to 1.": found}
        # Scores near 1000 have rounding errors of 1e-4.
        compare(found, scores.softmax(0), known, tolerance=1e-3, nan=nan)
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
        "the table is transposed: it needs a row for each position.": right.T,
        "there are only sines. Odd dimensions are cosines.": torch.stack(2 * [sine_first[..., 0]], -1).flatten(1),
    }
    found = call(answer, length, width)
    # Products are large, so their sines have large rounding errors.
    if isinstance(found, Tensor) and equal(found, table(position, -pairs), tolerance=0.05):
        raise Mistake("the position is multiplied by the power. Divide by it.")
    compare(found, right, mistakes, tolerance=1e-4)
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
    with Operations() as used:
        found = call(answer, scores)
    if isinstance(found, Tensor) and found.shape == scores.shape and found.is_floating_point():
        for hint, wrong in mistakes.items():
            if torch.equal(found.exp(), wrong.exp()):
                raise Mistake(hint)
        if found.isnan().any():
            advice = " Replace the scores instead of multiplying by infinity." if "product" in used.nan else ""
            raise Mistake(f"the result contains NaN. {used.nan}{advice}".strip())
        if found.isposinf().any():
            raise Mistake("a score is plus infinity. Use minus infinity.")
        if found.isneginf().all(-1).any():
            raise Mistake("a row has only scores of minus infinity, so it has no softmax. Each word must see itself.")
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
    worse = (
        " This is worse than guessing: the decoder learned to copy the next digit, and now it does not see this digit."
    )
    return (
        f"the decoder reports a loss of {reported:.3f}, although random digits allow no less than 2.303. "
        f"If it reads only the earlier digits, its loss is {honest:.2f}." + worse * bool(reported < log(10) < honest)
    )


def program(ends_after: int) -> Callable[[list[int]], Tensor]:
    """Return a decoder whose next token depends on all tokens so far. After some tokens, it ends with token 1."""

    def next_scores(tokens: list[int]) -> Tensor:
        scores, total = torch.zeros(20), sum(map(int, tokens))
        scores[2 + total % 18] = 2.0
        scores[2 + (total + 9) % 18] = -9.0
        scores[1] = 5.0 if len(tokens) > ends_after else -5.0
        return scores

    return next_scores


def written(
    next_scores: Callable[[list[int]], Tensor],
    begin: list[int],
    limit: int,
    end: int = 1,
    choose: Callable[[Tensor], Tensor] = torch.argmax,
) -> list[int]:
    """Return the tokens that a search adds to the list `begin`."""
    tokens = list(begin)
    while len(tokens) < len(begin) + limit:
        token = int(choose(next_scores(tokens)))
        if token == end:
            break
        tokens.append(token)
    return tokens[len(begin) :]


def token_numbers(answer: object) -> list[float]:
    if not is_vector(answer):
        raise Mistake(f"expected a list of token numbers, found {kind(answer)}.")
    if len(answer) > 100:  # of a limit of at most 10
        raise Mistake(f"the search ignores the limit: it returns {len(answer):,} tokens.")
    found = numbers(answer, len(answer), "the tokens")
    return [int(value) if value.is_integer() else value for value in found]


@exercise
def greedy(answer: object) -> str:
    """Greedy search: the tokens that a decoder writes until it ends, or until a limit."""
    start, end = 7, 1
    for ends_after, limit in ((4, 10), (9, 5)):
        next_scores = program(ends_after)
        right = written(next_scores, [start], limit)
        endless = written(next_scores, [start], limit + ends_after, end=-1)
        last = written(lambda tokens, scores=next_scores: scores(tokens[-1:]), [start], limit)  # type: ignore[misc]
        found, again = (token_numbers(call(answer, next_scores, start, end, limit)) for _ in range(2))
        if found != again:
            raise Mistake("two calls with the same decoder return different tokens. Always take the highest score.")
        mistakes: list[tuple[str, list[int]]] = [
            ("the end token is not part of the translation.", [*right, end]),
            ("the start and the end token are not part of the translation.", [start, *right, end]),
            ("the search does not stop at the end token.", endless[:limit]),
            ("the search ignores the limit.", endless[:ends_after]),
            ("one token is missing. The limit counts the written tokens without the start token.", right[:-1]),
            (
                "one token too many. The limit counts the written tokens without the start token.",
                endless[: len(right) + 1],
            ),
            ("the decoder gets only the last token. It needs all tokens so far.", last),
            (
                "the search adds the token with the lowest score.",
                written(next_scores, [start], limit, choose=torch.argmin),
            ),
            (
                "the search adds the highest score itself. Add its token, the index of this score.",
                written(next_scores, [start], limit, choose=torch.max),
            ),
            ("the decoder does not get the start token. Begin with the list [start].", written(next_scores, [], limit)),
            (
                "the decoder does not get the start token. Begin with the list [start].",
                written(next_scores, [], limit + 1)[1:],
            ),
        ]
        for hint, wrong in mistakes:
            if found == wrong != right:
                raise Mistake(hint)
        if found[: len(right) + 1] == [start, *right]:
            raise Mistake("the start token is not part of the translation.")
        if found != right:
            decoder = f"for start = {start}, limit = {limit} and a decoder that ends after {ends_after} tokens"
            raise Mistake(f"expected the token numbers {right}, found {found}, {decoder}.")
    return "greedy_decode of PyTorch's tutorial does the same."
