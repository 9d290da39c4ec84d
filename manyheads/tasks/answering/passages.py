"""Questions with windows of their contexts, and the spans that a model finds likeliest in them."""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor

from manyheads.core.runtime import ComputeConfig
from manyheads.data.text.windows import Frame, owners, windows
from manyheads.errors import UserError
from manyheads.tasks.outputs import outputs

logger = logging.getLogger(__name__)

READING = {"max_length": 384, "stride": 128, "max_query": 64}  # tokens: those of the published code
NULL = 0  # the position that stands for no answer
MAX_ANSWER = 30  # tokens of an answer, as there


class Passage(NamedTuple):
    """A question with a window of its context, between the tokenizer's special tokens.

    question  its number
    first     the position in `ids` of the window's first token, which is token `start` of the context
    spans     characters of the context that each token of the window stands for: (tokens, 2)
    owned     tokens of the window that have no more context in another one: (tokens,)
    """

    ids: NDArray[np.int32]
    segments: NDArray[np.int32]
    question: int
    first: int
    spans: NDArray[np.int32]
    owned: NDArray[np.bool_]


def passages(
    tokenizer: Tokenizer,
    pairs: Sequence[tuple[str, str]],
    *,
    max_length: int = READING["max_length"],
    stride: int = READING["stride"],
    max_query: int = READING["max_query"],
) -> list[Passage]:
    """The windows of all pairs of question and context, of at most `max_length` tokens, each beginning `stride` tokens
    of the context after the one before. Of a question `max_query` tokens are read, as in the published code; how many
    questions are longer is logged."""
    frame = Frame.of(tokenizer, pair=True)
    if not frame.before:
        raise UserError("this tokenizer puts no token before a pair: questions need one, which stands for no answer")
    contexts = list(dict.fromkeys(context for _, context in pairs))
    encodings = tokenizer.encode_batch(contexts, add_special_tokens=False)
    encoded = dict(zip(contexts, encodings, strict=True))
    queries = tokenizer.encode_batch([question for question, _ in pairs], add_special_tokens=False)
    if cut := sum(len(query.ids) > max_query for query in queries):
        logger.warning(f"{cut:,} of {len(pairs):,} questions are cut to max_query, {max_query} tokens")
    all_passages = []
    for number, ((_, context), query) in enumerate(zip(pairs, queries, strict=True)):
        question = query.ids[:max_query]
        room = max_length - len(frame) - len(question)
        if room < 1:
            raise UserError(
                f"max_length {max_length} leaves no room for the context of a question of {len(question)} tokens: "
                "raise it, or lower max_query"
            )
        ids, offsets = encoded[context].ids, encoded[context].offsets
        parts = windows(len(ids), room, min(stride, room))
        owner = np.array(owners(parts), dtype=np.int64)
        spans = np.array(offsets, dtype=np.int32).reshape(-1, 2)
        for i, part in enumerate(parts):
            both, segments = frame.around(question, ids[part.start : part.end])
            inside = slice(part.start, part.end)
            first = len(frame.before) + len(question) + len(frame.between)
            all_passages.append(
                Passage(
                    np.array(both, np.int32), np.array(segments, np.int32), number, first, spans[inside],
                    owner[inside] == i,
                )
            )  # fmt: skip
    return all_passages


def target_of(passage: Passage, start: int, end: int) -> tuple[int, int]:
    """The positions of the first and the last token of the characters `start` to `end` of the context (`end` not among
    them); (NULL, NULL) where the window does not hold them all."""
    begins, ends = passage.spans[:, 0].tolist(), passage.spans[:, 1].tolist()
    if not begins or start < begins[0] or end > ends[-1]:
        return NULL, NULL
    first, last = bisect_right(ends, start), bisect_left(begins, end) - 1
    return (passage.first + first, passage.first + last) if first <= last else (NULL, NULL)


def passage_logits(model: Any, passages: Sequence[Passage], compute: ComputeConfig) -> list[Tensor]:
    """Of being the first and the last token of the answer: (T, 2) float32 on the CPU for each passage."""
    logits: list[Tensor] = [torch.empty(0)] * len(passages)
    ids, segments = [p.ids for p in passages], [p.segments for p in passages]
    for i, output in outputs(model, compute, ids, model.config.pad, segments):
        logits[i] = output[: len(ids[i])]
    return logits


class FoundAnswer(NamedTuple):
    """Characters `start` to `end` of the context; no text is no answer. The probability is among the n-best."""

    text: str
    probability: float
    start: int
    end: int
    score: float  # sum of the two logits


def likeliest(
    passages: Sequence[Passage],
    logits: Sequence[Tensor],
    contexts: Sequence[str],
    nbest: int,
    max_answer: int,
    null_threshold: float | None,
) -> list[list[FoundAnswer]]:
    """The n-best answers of each question, from those of all its windows; see `QuestionAnswerer.answer`."""
    spans: list[list[FoundAnswer]] = [[] for _ in contexts]
    null = [float("inf")] * len(contexts)  # the score of no answer: of the window that is least sure of it
    for passage, pairs in zip(passages, logits, strict=True):
        i = passage.question
        spans[i] += _spans(passage, pairs, contexts[i], nbest, max_answer)
        null[i] = min(null[i], float(pairs[NULL].sum()))
    return [_ranked(answers, score, nbest, null_threshold) for answers, score in zip(spans, null, strict=True)]


def _spans(passage: Passage, logits: Tensor, context: str, nbest: int, max_answer: int) -> list[FoundAnswer]:
    """The best spans of a window; logits (T, 2). A span belongs to the window that sees most around its first token,
    as in the published code, whose n-best are of the n best starts and ends; here they are of all spans."""
    tokens = len(passage.spans)
    start, end = logits[passage.first : passage.first + tokens].unbind(1)  # (tokens,) each
    scores = start[:, None] + end  # by first and last token: (tokens, tokens)
    allowed = torch.ones(tokens, tokens, dtype=torch.bool).triu().tril(max_answer - 1)
    allowed &= torch.from_numpy(passage.owned)[:, None]
    values, at = scores.masked_fill(~allowed, -torch.inf).flatten().topk(min(nbest, int(allowed.sum())))
    answers = []
    for value, place in zip(values.tolist(), at.tolist(), strict=True):
        first, last = (int(passage.spans[place // tokens, 0]), int(passage.spans[place % tokens, 1]))
        answers.append(FoundAnswer(context[first:last], 0.0, first, last, value))
    return answers


def _ranked(spans: list[FoundAnswer], null: float, nbest: int, null_threshold: float | None) -> list[FoundAnswer]:
    """The n-best with their probabilities: a softmax of their scores, as in the published code."""
    ordered = sorted(spans, key=lambda answer: -answer.score)
    texts = {answer.text: answer for answer in reversed(ordered)}  # the best of those that read the same
    ordered = [answer for answer in ordered if texts[answer.text] is answer][:nbest]
    if null_threshold is not None or not ordered:
        nothing = FoundAnswer("", 0.0, 0, 0, null)
        margin = null_threshold or 0.0
        before = [answer for answer in ordered if null - answer.score <= margin]
        ordered = [*before, nothing, *ordered[len(before) :]][:nbest]
    probabilities = torch.tensor([answer.score for answer in ordered], dtype=torch.float64).softmax(0).tolist()
    return [answer._replace(probability=p) for answer, p in zip(ordered, probabilities, strict=True)]
