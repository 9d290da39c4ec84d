"""Checks of the exercises in the tutorial about the textbook."""

from __future__ import annotations

from math import e, log

import torch
from torch import Tensor

import manyheads
from manyheads.core.attention import Attention, attend
from manyheads.core.masks import Mask
from manyheads.models.text_classifier import TextClassifier

from .checking import Mistake, call, compare, compare_numbers, exercise, kind


@exercise
def weights(answer: object) -> str:
    """Weights of one word with the scores 0, 0, 0 and log 3."""
    total = 3 + log(3)
    mistakes = {
        "these are the exponentials. Divide them by their sum.": (1, 1, 1, 3),
        "these are the scores divided by their sum. Take the exponentials first.": (0, 0, 0, 1),
        "this is a maximum. A softmax gives the other words a weight, too.": (0, 0, 0, 1.0 - 1e-9),
        "these weights are all equal, but the scores are not.": (0.25, 0.25, 0.25, 0.25),
        "e to the power of log 3 is 3, not log 3.": (1 / total, 1 / total, 1 / total, log(3) / total),
        "these are e to the power of 1, not of the scores.": (e / 3, e / 3, e / 3, e),
        "the exponential of 0 is 1, not 0.": (0, 0, 0, None),
    }
    compare_numbers(answer, (1 / 6, 1 / 6, 1 / 6, 1 / 2), mistakes, tolerance=5e-3)
    return "a word with a score that is higher by log 3 has three times the weight."


@exercise
def attention(answer: object) -> str:
    """Softmax attention from its formula, for matrices Q (5, 8), K (7, 8) and V (7, 3)."""
    Q, K, V = torch.randn(5, 8), torch.randn(7, 8), torch.randn(7, 3)
    scores = Q @ K.T
    mistakes = {
        "the scores are not divided by the root of d.": scores.softmax(-1) @ V,
        "the scores are divided by d. Divide them by its root.": (scores / 8).softmax(-1) @ V,
        "the scores are multiplied by the root of d. Divide them by it.": (scores * 8**0.5).softmax(-1) @ V,
        "the scores are divided by the root of a number of words. The root of the width d belongs there.": (
            scores / 7**0.5
        ).softmax(-1)
        @ V,
        "the root of 5, the number of queries, belongs nowhere. Use the width d.": (scores / 5**0.5).softmax(-1) @ V,
        "the softmax runs over the queries. The weights of each query must add up to 1.": (
            (scores / 8**0.5).softmax(0) @ V
        ),
        "all weights together add up to 1. The weights of each query must add up to 1.": (
            (scores / 8**0.5).flatten().softmax(0).view(5, 7) @ V
        ),
        "these are the weights. Multiply them by the values.": (scores / 8**0.5).softmax(-1),
        "there is no softmax.": scores / 8**0.5 @ V,
        "the division by the root comes after the softmax. It belongs to the scores.": scores.softmax(-1) @ V / 8**0.5,
    }
    one = (x[None, None] for x in (Q, K, V))  # one text, one head
    compare(call(answer, Q, K, V), attend(*one)[0, 0], mistakes, tolerance=1e-6)
    return "the result equals attend to 1e-6."


@exercise
def without_padding(answer: object) -> str:
    """Attention that ignores the padding: the keys from position `length` on."""
    Q, K, V, length = torch.randn(6, 8), torch.randn(6, 8), torch.randn(6, 3), 4
    scores, hidden = Q @ K.T / 8**0.5, torch.arange(6) >= length
    weights = scores.softmax(-1)
    mistakes = {
        "the padding still gets a part of the weight. It is not hidden at all.": weights @ V,
        "the weights of the words do not add up to 1, because the mask comes after the softmax.": (
            weights.masked_fill(hidden, 0) @ V
        ),
        "a score of 0 still gets a weight, because its exponential is 1.": scores.masked_fill(hidden, 0).softmax(-1)
        @ V,
        "the mask hides the words and keeps the padding.": scores.masked_fill(~hidden, -1e9).softmax(-1) @ V,
        "the mask hides the queries of the padding. It must hide their keys, the columns of the scores.": (
            scores.masked_fill(hidden[:, None], -1e9).softmax(-1) @ V
        ),
        "the softmax runs over the queries.": scores.masked_fill(hidden, -1e9).softmax(0) @ V,
        "the scores are not divided by the root of d.": (Q @ K.T).masked_fill(hidden, -1e9).softmax(-1) @ V,
        "one position too many is hidden. The words have the positions 0 to length - 1.": (
            scores.masked_fill(torch.arange(6) >= length - 1, -1e9).softmax(-1) @ V
        ),
        "the first position of the padding is still visible. Positions are counted from 0.": (
            scores.masked_fill(torch.arange(6) > length, -1e9).softmax(-1) @ V
        ),
    }
    one = (x[None, None] for x in (Q, K, V))
    expected = attend(*one, mask=Mask(key_lengths=torch.tensor([length])))[0, 0]
    nan = "A row whose scores are all minus infinity has no softmax. Hide columns, not rows."
    compare(call(answer, Q, K, V, length), expected, mistakes, nan=nan)
    return "the padding has no influence, and the weights of the words add up to 1."


@exercise
def heads(answer: object) -> str:
    """Multi-head attention of x (5, 8) with H = 2 heads of width 4."""
    N, d, H = 5, 8, 2
    layer, x = Attention(d, H, bias=False), torch.randn(N, d)
    matrices = [part.weight.detach().T.clone() for part in (layer.query, layer.key, layer.value, layer.output)]

    def result(width: float, split: str = "columns", mix: bool = True) -> Tensor:
        Q, K, V = (x @ matrix for matrix in matrices[:3])
        if split == "columns":
            Q, K, V = (part.view(N, H, d // H).transpose(0, 1) for part in (Q, K, V))
        elif split == "rows":
            Q, K, V = (part.reshape(H, N, d // H) for part in (Q, K, V))
        elif split == "alternate":
            Q, K, V = (part.view(N, d // H, H).permute(2, 0, 1) for part in (Q, K, V))
        Z = (Q @ K.mT / width**0.5).softmax(-1) @ V
        joined = Z if split == "none" else Z.transpose(0, 1).reshape(N, d)
        return joined @ matrices[3] if mix else joined

    mistakes = {
        "the scores of a head are divided by the root of d. Use the root of d / H, the width of a head.": result(d),
        "the scores are not divided by the root of d / H.": result(1),
        "the output matrix W_O is missing.": result(d / H, mix=False),
        "this is one head of full width. Split the queries, keys and values first.": result(d, "none"),
        "this is one head of full width, with the root of another width.": result(d / H, "none"),
        "a head got parts of several words. Split each row into H parts first, then put the heads in front.": (
            result(d / H, "rows")
        ),
        "head h gets every H-th column. It gets d / H neighboring columns.": result(d / H, "alternate"),
    }
    compare(call(answer, x, *matrices, H), layer(x[None])[0].detach(), mistakes)
    return "the result equals the class Attention."


@exercise
def parameters(answer: object) -> str:
    """Number of parameters of the chapter's encoder layer, as in Keras, for any sizes."""
    for d, dense, H, head in ((48, 80, 3, 20), (32, 32, 2, 32)):
        wide = H * head
        matrices, biases = 4 * d * wide, 3 * wide + d
        feed_forward, hidden = 2 * d * dense, dense + d
        right = matrices + biases + feed_forward + hidden + 4 * d
        mistakes: dict[str, tuple[float]] = {
            "the biases of the six linear layers are missing.": (right - biases - hidden,),
            "the biases of the attention are missing.": (right - biases,),
            "the biases of the feed-forward network are missing.": (right - hidden,),
            "the biases of the linear layers are counted twice.": (right + biases + hidden,),
            "one of the two norms is missing. A norm has a factor and a bias for each number.": (right - 2 * d,),
            "both norms are missing.": (right - 4 * d,),
            "the output matrix of the attention is missing.": (right - d * wide - d,),
            "each head is head_width wide here, so all heads are H * head_width wide and not d.": (
                right - matrices - biases + 4 * d * d + 4 * d,
            ),
            "the matrices of one head are counted. There are H of them.": (
                right - matrices - biases + 4 * d * head + 3 * head + d,
            ),
            "the output matrix has d biases and not one for each number of the heads.": (right - d + wide,),
        }
        expected = (float(right),)
        found = call(answer, d, dense, H, head)
        compare_numbers(found, expected, mistakes, [f"the number for d = {d}, dense = {dense}, H = {H}"])
    return "the chapter's layer has 10,656 parameters."


@exercise
def padding_proof_model(answer: object) -> str:
    """A model like the chapter's, with 650,689 parameters, whose answer does not depend on padding."""
    if not isinstance(answer, TextClassifier):
        raise Mistake(f"expected a TextClassifier, found {kind(answer)}. Build the model from its preset.")
    c = answer.config
    if c.positions != "none":
        raise Mistake("the model has position embeddings, too. Change only what the padding needs.")
    if c.pooling != "max":
        raise Mistake(f"the model takes the {c.pooling} over the words. The chapter takes the maximum; keep it.")
    if (count := sum(p.numel() for p in answer.parameters())) != 650_689:
        raise Mistake(f"the model has {count:,} parameters, expected 650,689. Change no sizes.")
    if answer.training:
        raise Mistake("the model is in training mode, so dropout changes its answer. Call eval().")
    words, length = torch.randint(1, 20_000, (1, 7)), torch.tensor([7])
    with torch.no_grad(), manyheads.record(answer) as maps:
        answer(words, length)
    padding = float(maps["encoder.blocks.0.attention"][0][..., 7:].sum(-1).mean())
    if padding > 0:
        raise Mistake(f"in a text of 7 words, {padding:.0%} of the attention goes to padding. Which setting hides it?")
    return "the model reads only words, with the chapter's 650,689 parameters."
