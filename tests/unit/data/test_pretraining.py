"""BERT's data builder, compared with a transcription of the original procedure, with invariants and statistics."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np
import pytest

from manyheads.data.text.pretraining import (
    Example,
    PretrainingData,
    Rules,
    Span,
    Special,
    continuations,
    truncate_pair,
)
from manyheads.data.text.tokenized_documents import TokenizedDocuments  # fmt: skip
from manyheads.data.text.tokenizers import train_wordpiece

SPECIAL = Special(0, 1, 2)
FIRST = 10  # tokens of the text are numbered from here, each occurring once, so that a token tells where it stood


def corpus(sizes: list[list[int]]) -> TokenizedDocuments:
    """Documents of sentences of these numbers of tokens."""
    lengths = [n for document in sizes for n in document]
    ends = np.cumsum(lengths) + FIRST
    sentences = [np.arange(end - n, end) for end, n in zip(ends, lengths, strict=True)]
    return TokenizedDocuments(sentences, lengths, np.cumsum([0, *map(len, sizes)]))


def random_corpus(documents: int = 40, seed: int = 0, longest: int = 14) -> TokenizedDocuments:
    draw = random.Random(seed)
    return corpus([[draw.randint(1, longest) for _ in range(draw.randint(1, 12))] for _ in range(documents)])


def data(
    documents: TokenizedDocuments, seed: int = 3, inner: frozenset[int] = frozenset(), **rules: Any
) -> PretrainingData:
    vocabulary = FIRST + sum(documents.lengths)
    return PretrainingData(documents, Rules(**rules), SPECIAL, vocabulary, seed=seed, inner=inner)


def restored(example: Example) -> list[int]:
    tokens = list(example.tokens)
    for at, answer in zip(example.positions, example.answers, strict=True):
        tokens[at] = answer
    return tokens


def original_instances(documents: list[list[list[int]]], document_index: int, room: int, short: float, rng: Any) -> Any:
    """create_instances_from_document of the original code, up to the truncation; positions count from the document."""
    document = documents[document_index]
    target_seq_length = room
    if rng.random() < short:
        target_seq_length = rng.randint(2, room)
    instances, current_chunk, current_length, i = [], [], 0, 0
    while i < len(document):
        current_chunk.append(document[i])
        current_length += len(document[i])
        if i == len(document) - 1 or current_length >= target_seq_length:
            a_end = 1
            if len(current_chunk) >= 2:
                a_end = rng.randint(1, len(current_chunk) - 1)
            tokens_a = [token for segment in current_chunk[:a_end] for token in segment]
            tokens_b: list[int] = []
            if len(current_chunk) == 1 or rng.random() < 0.5:
                is_random_next = True
                target_b_length = target_seq_length - len(tokens_a)
                for _ in range(10):
                    random_document_index = rng.randint(0, len(documents) - 1)
                    if random_document_index != document_index:
                        break
                random_document = documents[random_document_index]
                random_start = rng.randint(0, len(random_document) - 1)
                for j in range(random_start, len(random_document)):
                    tokens_b.extend(random_document[j])
                    if len(tokens_b) >= target_b_length:
                        break
                i -= len(current_chunk) - a_end
            else:
                is_random_next = False
                tokens_b = [token for segment in current_chunk[a_end:] for token in segment]
            instances.append((tokens_a, tokens_b, not is_random_next))
            current_chunk, current_length = [], 0
        i += 1
    return instances


@pytest.mark.parametrize("length", [7, 25, 64])
def test_spans_equal_the_original_procedure(length: int) -> None:
    documents = random_corpus()
    made = data(documents, length=length, short=0.3)
    texts = [
        [documents.sentences[s].tolist() for s in range(*documents.starts[d : d + 2])] for d in range(len(documents))
    ]

    def tokens(first: int, last: int) -> list[int]:
        return [token for s in range(first, last) for token in documents.sentences[s].tolist()]

    for epoch in range(3):
        rng = made.random(epoch)
        expected = [
            instance
            for document in range(len(documents))
            for instance in original_instances(texts, document, length - 3, 0.3, rng)
        ]
        spans = made.spans(epoch)
        assert [(tokens(s.a, s.middle), tokens(s.b, s.end), s.follows) for s in spans] == expected
        assert len({s.follows for s in spans}) == 2


@pytest.mark.parametrize("next_sentence", [True, False])
def test_an_epoch_reads_every_sentence_once(next_sentence: bool) -> None:
    documents = random_corpus()
    made = data(documents, length=30, next_sentence=next_sentence)
    for epoch in range(3):
        covered: Counter[int] = Counter()
        for span in made.spans(epoch):
            covered.update(range(span.a, span.middle))
            if span.follows:
                assert span.b == span.middle
                covered.update(range(span.b, span.end))
        assert covered == Counter(range(len(documents.sentences)))


@pytest.mark.parametrize("length", [8, 30])
def test_full_sentences_fill_examples_across_documents(length: int) -> None:
    """Equal to a greedy packing of all sentences, with a separator before each document that does not begin one."""
    documents = random_corpus(longest=length - 2)
    made = data(documents, length=length, next_sentence=False, full_sentences=True)
    firsts, packed = {*documents.starts.tolist()}, list[list[int]]()
    for number, sentence in enumerate(documents.sentences):
        joined = [SPECIAL.separator] * (number in firsts) + sentence.tolist()
        if packed and len(packed[-1]) + len(joined) <= length - 2:
            packed[-1] += joined
        else:
            packed.append(sentence.tolist())
    first, second = made.epoch(0), made.epoch(1)
    assert [restored(example) for example in first] == [
        [SPECIAL.start, *tokens, SPECIAL.separator] for tokens in packed
    ]
    assert any(SPECIAL.separator in example.tokens[1:-1] for example in first)
    for epoch in (first, second):
        assert first.lengths.tolist() == [len(example.tokens) for example in epoch]
        assert all(epoch.lengths <= length)
    assert [example.positions for example in first] != [example.positions for example in second]
    assert all(SPECIAL.separator not in example.answers for example in first)


def test_a_random_next_sentence_comes_from_another_document() -> None:
    documents = random_corpus(documents=200)
    made = data(documents, length=30)
    document_of = np.searchsorted(documents.starts, np.arange(len(documents.sentences)), side="right")
    spans = [span for epoch in range(3) for span in made.spans(epoch)]
    for span in spans:
        assert len({document_of[s] for s in range(span.a, span.middle)}) == 1
        assert len({document_of[s] for s in range(span.b, span.end)}) == 1
        assert (document_of[span.a] == document_of[span.b]) == span.follows
    longer = [span for span in spans if span.end - span.a > 1 or not span.follows]
    assert 0.25 < sum(bool(span.follows) for span in longer) / len(longer) < 0.5


def test_a_single_sentence_document_has_no_next_sentence() -> None:
    made = data(corpus([[4]] * 30), length=30)
    assert [span.follows for span in made.spans(0)] == [False] * 30


def test_one_document_cannot_give_pairs() -> None:
    with pytest.raises(ValueError, match="found one; separate documents with blank lines"):
        data(corpus([[4, 5, 6]]), length=30)
    assert len(data(corpus([[4, 5, 6]]), length=30, next_sentence=False).epoch(0)) == 1


def test_examples_have_special_tokens_and_order_within_the_length() -> None:
    documents = random_corpus(longest=40)
    for pairs in (True, False):
        epoch = data(documents, length=24, next_sentence=pairs).epoch(1)
        lengths = []
        for span, example in zip(epoch.spans, epoch, strict=True):
            tokens = restored(example)
            lengths.append(len(tokens))
            assert len(tokens) == len(example.segments) <= 24
            assert (tokens[0], tokens[-1], tokens.count(SPECIAL.separator)) == (0, 1, 2 if pairs else 1)
            middle = tokens.index(SPECIAL.separator)
            a, b = tokens[1:middle], tokens[middle + 1 : -1]
            assert example.segments == [0] * (middle + 1) + [1] * (len(tokens) - middle - 1)
            assert example.follows is span.follows
            for part, first, last in ((a, span.a, span.middle), (b, span.b, span.end)):
                if part:  # consecutive tokens of the span
                    assert part == list(range(part[0], part[0] + len(part)))
                    assert documents.sentences[first][0] <= part[0]
                    assert part[-1] <= documents.sentences[last - 1][-1]
            assert a
            assert bool(b) == pairs
        assert lengths == epoch.lengths.tolist()
        assert max(lengths) == 24


def test_the_longer_part_is_truncated_at_random_ends() -> None:
    draw = random.Random(0)
    fronts = 0
    for _ in range(300):
        a, b = truncate_pair(list(range(30)), list(range(100, 150)), 40, draw)
        assert len(a) == len(b) == 20
        fronts += a[0] + b[0] - 100
    # 40 tokens are cut 300 times, a half of them in front
    assert abs(fronts - 6000) < 4 * (12_000 * 0.25) ** 0.5
    assert truncate_pair([1, 2], list(range(50)), 10, draw)[0] == [1, 2]
    assert truncate_pair([1, 2], [3], 3, draw) == ([1, 2], [3])


@pytest.mark.parametrize(("share", "limit"), [(0.15, 7), (0.15, None), (0.4, None), (0.4, 30)])
def test_the_requested_number_is_masked_without_special_tokens(share: float, limit: int | None) -> None:
    documents = random_corpus(documents=100, longest=40)
    for example in data(documents, length=80, share=share, predictions=limit, short=0.5).epoch(0):
        assert len(example.positions) == min(limit or 80, max(1, round(len(example.tokens) * share)))
        assert example.positions == sorted(set(example.positions))
        assert not {0, 1} & set(example.answers)
        untouched = set(range(len(example.tokens))) - set(example.positions)
        assert SPECIAL.mask not in {example.tokens[at] for at in untouched}


def test_masking_follows_eighty_ten_ten() -> None:
    documents = random_corpus(documents=300, longest=30)
    made = data(documents, length=128)
    outcomes: Counter[str] = Counter()
    drawn, places = [], []
    for example in (example for epoch in range(4) for example in made.epoch(epoch)):
        for at, answer in zip(example.positions, example.answers, strict=True):
            token = example.tokens[at]
            kind = "masked" if token == SPECIAL.mask else "kept" if token == answer else "random"
            outcomes[kind] += 1
            if kind == "random":
                drawn.append(token)
            places.append(at / len(example.tokens))
    total = sum(outcomes.values())
    assert total > 8000
    for kind, share in (("masked", 0.8), ("kept", 0.1), ("random", 0.1)):
        assert abs(outcomes[kind] - share * total) < 4 * (total * share * (1 - share)) ** 0.5, outcomes
    # any token of the vocabulary, all as likely; [CLS] and the like among them
    half = sum(token < made.vocabulary / 2 for token in drawn)
    assert abs(half - len(drawn) / 2) < 4 * (len(drawn) / 4) ** 0.5
    assert min(drawn) < made.vocabulary * 0.01
    assert max(drawn) > made.vocabulary * 0.99
    assert abs(np.mean(places) - 0.5) < 0.02


def test_a_tenth_of_the_examples_is_short() -> None:
    documents = corpus([[5] * 8] * 3000)

    def early(short: float) -> float:
        """Of the documents that are read from the beginning as a true pair, those whose pair ends before they do."""
        pairs = [s for s in data(documents, length=43, short=short).spans(0) if s.a % 8 == 0 and s.follows]
        return sum(s.end - s.a < 8 for s in pairs) / len(pairs)

    # a short length is uniform over 2 to 40 tokens, and no more than 35 of them end before the eighth sentence
    assert early(0.0) == 0.0
    assert early(0.1) == pytest.approx(0.1 * 34 / 39, abs=0.025)
    assert early(1.0) == pytest.approx(34 / 39, abs=0.025)


def test_whole_words_are_masked_together() -> None:
    documents = random_corpus(longest=40)
    inner = frozenset(token for token in range(FIRST, FIRST + sum(documents.lengths)) if token % 3)
    torn = 0
    for whole in (True, False):
        for example in data(documents, length=64, whole_words=whole, inner=inner).epoch(0):
            tokens, chosen = restored(example), set(example.positions)
            assert chosen
            for at, token in enumerate(tokens[:-1]):
                if token > 1 and tokens[at + 1] in inner and (at in chosen) != (at + 1 in chosen):
                    assert not whole
                    torn += 1
    assert torn > 100


def test_a_word_longer_than_the_budget_is_masked_anyway() -> None:
    documents = corpus([[6], [6]])
    made = data(documents, length=20, whole_words=True, inner=frozenset(range(FIRST + 1, FIRST + 12)) - {FIRST + 6})
    assert {len(example.positions) for example in made.epoch(0)} == {6}


def test_an_epoch_depends_only_on_seed_and_index() -> None:
    documents = random_corpus()
    first = list(data(documents).epoch(5))
    again = data(documents).epoch(5)
    random.seed(1)
    assert [again[i] for i in reversed(range(len(again)))] == first[::-1]
    assert list(data(documents).epoch(6)) != first
    assert list(data(documents, seed=4).epoch(5)) != first


def test_copies_are_repeated() -> None:
    made = data(random_corpus(), copies=2)
    assert list(made.epoch(3)) == list(made.epoch(1))
    assert list(made.epoch(2)) != list(made.epoch(1))


def test_a_span_may_exceed_the_window() -> None:
    made = data(corpus([[100], [3]]), length=10)
    for example in made.epoch(0):
        assert len(example.tokens) == 10
    assert made.spans(0)[0] == Span(0, 1, 1, 2, False)


@pytest.mark.parametrize(
    ("rules", "message"),
    [({"length": 4}, "length is 4; expected at least 5"), ({"share": 0.0}, "share is 0.0"),
     ({"predictions": 0}, "predictions is 0"), ({"copies": 0}, "copies is 0")],
)  # fmt: skip
def test_impossible_rules_are_reported(rules: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Rules(**rules)


def test_continuations_are_pieces_inside_words() -> None:
    assert continuations({"a": 3, "##a": 4, "#": 5, "##": 6}) == {4, 6}


def test_documents_without_tokens_are_reported() -> None:
    tokenizer = train_wordpiece(["red green"] * 5, 60)
    with pytest.raises(ValueError, match="the tokenizer produced no tokens for the 2 documents; give texts with words"):
        TokenizedDocuments.of([["\u200e"], ["\u200e\u200e"]], tokenizer)
