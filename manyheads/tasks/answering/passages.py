"""Model inputs for question answering, and the search for the most probable answer spans.

A model input is called a passage. It joins a question with a window, that is, a part of the question's context.
"""

from __future__ import annotations

import logging
import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor

from manyheads.core.runtime import ComputeConfig
from manyheads.data.text.windows import SpecialTokenTemplate, owners, windows
from manyheads.errors import UserError
from manyheads.models.bert import Bert
from manyheads.tasks.outputs import outputs

logger = logging.getLogger(__name__)

# default length limits in tokens, as in BERT's published code for SQuAD
READING = {"max_length": 384, "stride": 128, "max_query": 64}
NULL = 0  # position of the token [CLS], which represents "no answer"
MAX_ANSWER = 30  # maximum number of tokens in an answer, as in BERT's published code for SQuAD


class Passage(NamedTuple):
    """Question with a window of its context, and the tokenizer's special tokens, as token ids.

    question  index of the question in the data
    first     index in `ids` of the window's first token, which is token `start` of the context
    spans     start and end character in the context of each token in the window, (tokens, 2)
    owned     true for each token that has more context in this window than in any other window, (tokens,)
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
    """Split the context of each question into windows, and return them as passages.

    A passage has at most `max_length` tokens with its question. A window starts `stride` tokens after the previous
    window. Longer questions are cut to `max_query` tokens, as in BERT's published code. A warning gives the number of
    these questions.
    """
    frame = SpecialTokenTemplate.of(tokenizer, pair=True)
    if not frame.before:
        raise UserError(
            'the tokenizer adds no token before a pair: question answering needs such a token to represent "no answer"'
        )
    contexts = list(dict.fromkeys(context for _, context in pairs))
    encodings = tokenizer.encode_batch(contexts, add_special_tokens=False)
    encoded = dict(zip(contexts, encodings, strict=True))
    queries = tokenizer.encode_batch([question for question, _ in pairs], add_special_tokens=False)
    if cut_questions := sum(len(query.ids) > max_query for query in queries):
        logger.warning(f"{cut_questions:,} of {len(pairs):,} questions are cut to max_query, {max_query} tokens")
    all_passages = []
    for number, ((_, context), query) in enumerate(zip(pairs, queries, strict=True)):
        question = query.ids[:max_query]
        context_tokens = max_length - len(frame) - len(question)
        if context_tokens < 1:
            raise UserError(
                f"max_length {max_length} leaves no space for the context of a question of {len(question)} tokens: "
                "raise max_length, or lower max_query"
            )
        ids, offsets = encoded[context].ids, encoded[context].offsets
        parts = windows(len(ids), context_tokens, min(stride, context_tokens))
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
    """Return the positions in a passage of the first and the last token of an answer.

    The answer is the part of the context from character `start` up to but not including `end`. The result is (NULL,
    NULL) if the window does not contain the whole answer.
    """
    begins, ends = passage.spans[:, 0].tolist(), passage.spans[:, 1].tolist()
    if not begins or start < begins[0] or end > ends[-1]:
        return NULL, NULL
    first, last = bisect_right(ends, start), bisect_left(begins, end) - 1
    return (passage.first + first, passage.first + last) if first <= last else (NULL, NULL)


def passage_logits(model: Bert, passages: Sequence[Passage], compute: ComputeConfig) -> list[Tensor]:
    """Return two logits for each token of each passage: one as first token, one as last token of the answer.

    The result is a list with a float32 tensor (T, 2) on the CPU for each passage.
    """
    logits: list[Tensor] = [torch.empty(0)] * len(passages)
    ids, segments = [p.ids for p in passages], [p.segments for p in passages]
    for i, output in outputs(model, compute, ids, model.config.pad, segments):
        logits[i] = output[: len(ids[i])]
    return logits


class FoundAnswer(NamedTuple):
    """Predicted answer to a question.

    The answer is the part of the context from character `start` up to but not including `end`. An empty text means "no
    answer". The probability is normalized over all spans that could be answers, in all windows of the context, and over
    "no answer" if it is allowed. It does not depend on the number of requested answers.
    """

    text: str
    probability: float
    start: int
    end: int
    score: float  # score of an answer: the logit of its first token plus the logit of its last token


def best_answers(
    passages: Sequence[Passage],
    logits: Sequence[Tensor],
    contexts: Sequence[str],
    nbest: int,
    max_answer: int,
    null_threshold: float | None,
) -> list[list[FoundAnswer]]:
    """Return the n-best answers of each question, from all windows of its context; see `QuestionAnswerer.answer`."""
    spans: list[list[FoundAnswer]] = [[] for _ in contexts]
    totals = torch.full([len(contexts)], -torch.inf, dtype=torch.float64)  # log of the sum of exp(score) of all spans
    null = [float("inf")] * len(contexts)  # lowest score of "no answer" over all windows of the question
    for passage, pairs in zip(passages, logits, strict=True):
        i = passage.question
        answers, total = _best_spans(passage, pairs, contexts[i], nbest, max_answer)
        spans[i] += answers
        totals[i] = totals[i].logaddexp(total)
        null[i] = min(null[i], float(pairs[NULL].sum()))
    ranked = zip(spans, totals.tolist(), null, strict=True)
    return [_rank_answers(answers, total, score, nbest, null_threshold) for answers, total, score in ranked]


def _best_spans(
    passage: Passage, logits: Tensor, context: str, nbest: int, max_answer: int
) -> tuple[list[FoundAnswer], Tensor]:
    """Return the spans of a window with the highest scores, for logits (T, 2) of first and last tokens.

    The second value is the log of the sum of exp(score) of all spans of the window.

    If windows overlap, a span counts in the window that has the most context around the span's first token, as in
    BERT's published code. We search all spans for the n best ones. The published code combines only the n best first
    tokens with the n best last tokens.
    """
    tokens = len(passage.spans)
    start, end = logits[passage.first : passage.first + tokens].unbind(1)  # (tokens,) each
    scores = start[:, None] + end  # answer scores (tokens, tokens), indexed by the first and the last token of a span
    allowed = torch.ones(tokens, tokens, dtype=torch.bool).triu().tril(max_answer - 1)
    allowed &= torch.from_numpy(passage.owned)[:, None]
    scores = scores.masked_fill(~allowed, -torch.inf).flatten()
    values, at = scores.topk(min(nbest, int(allowed.sum())))
    answers = []
    for value, index in zip(values.tolist(), at.tolist(), strict=True):
        first, last = (int(passage.spans[index // tokens, 0]), int(passage.spans[index % tokens, 1]))
        answers.append(FoundAnswer(context[first:last], 0.0, first, last, value))
    return answers, scores.double().logsumexp(0) if tokens else scores.new_tensor(-torch.inf)


def _rank_answers(
    spans: list[FoundAnswer], total: float, null: float, nbest: int, null_threshold: float | None
) -> list[FoundAnswer]:
    """Return the n-best answers to a question, with probabilities.

    The probabilities are a softmax of the scores of all spans, whose sum of exp(score) has the logarithm `total`.
    """
    ordered = sorted(spans, key=lambda answer: -answer.score)
    # Equal answer texts from several spans count once, with the best score.
    texts = {answer.text: answer for answer in reversed(ordered)}
    ordered = [answer for answer in ordered if texts[answer.text] is answer][:nbest]
    if null_threshold is not None or not ordered:
        no_answer = FoundAnswer("", 0.0, 0, 0, null)
        margin = null_threshold or 0.0
        better = [answer for answer in ordered if null - answer.score <= margin]
        ordered = [*better, no_answer, *ordered[len(better) :]][:nbest]
        total = float(np.logaddexp(total, null))
    return [answer._replace(probability=math.exp(answer.score - total)) for answer in ordered]
