"""Heads as parsers: known head 100%, random heads at chance, brute force, offsets, possessives, intervals."""

import numpy as np
import pytest
import torch
from scipy.stats import binomtest
from torch import Tensor

from manyheads.analysis.heads.coreference import DIRECTIONS as TOWARDS
from manyheads.analysis.heads.coreference import NEAREST, SAME_WORD, Referring, coreference_hits
from manyheads.analysis.heads.dependency import DIRECTIONS, dependency_hits
from manyheads.analysis.heads.selections import Selections, interval


def maps(words: int, seed: int, layers: int = 2, heads: int = 3) -> Tensor:
    scores = torch.randn(layers, heads, words, words, generator=torch.Generator().manual_seed(seed))
    return scores.mul(2).softmax(-1)


def tree(words: int, seed: int) -> list[int]:
    """Every word's head, and a root."""
    random = np.random.default_rng(seed)
    return [-1, *(int(random.integers(i)) for i in range(1, words))]


def corpus(sentences: int, planted: bool) -> Selections:
    parts = []
    for seed in range(sentences):
        words, heads = 7 + seed % 5, tree(7 + seed % 5, seed)
        attention = maps(words, seed)
        if planted:
            attention[1, 2] = 0.01
            attention[0, 0] = 0.01
            for word, head in enumerate(heads):
                if head >= 0:
                    attention[1, 2, word, head] = 0.9
                    attention[0, 0, head, word] = 0.5
        relations = ["root", *("even" if i % 2 == 0 else "odd" for i in range(1, words))]
        parts.append(dependency_hits(attention, ["w"] * words, heads, relations, cluster=seed))
    return Selections.of(parts, ["a", "b"], DIRECTIONS)


def test_a_known_head_is_found_in_its_direction() -> None:
    selections = corpus(30, planted=True)
    rows = selections.table()
    assert rows[0].group == "all"
    assert {row.group for row in rows} == {"all", "odd", "even"}
    for row in rows:
        assert (row.accuracy, row.held_out, row.high) == pytest.approx((1.0, 1.0, 1.0))
        assert (row.layer, row.head, row.direction) in {(1, 2, "dep->head"), (0, 0, "head->dep")}
    accuracy = selections.accuracies()
    assert accuracy[0, 1, 2] == accuracy[1, 0, 0] == 1.0
    assert (accuracy == 1.0).sum() == 2
    assert selections.counts()["odd"] >= selections.counts()["even"]


def test_random_heads_score_at_chance() -> None:
    selections = corpus(400, planted=False)
    chance = np.mean([1 / (7 + seed % 5 - 1) for seed in range(400) for _ in range(7 + seed % 5 - 1)])
    row = selections.best()
    np.testing.assert_allclose(selections.accuracies(), chance, atol=0.04)
    assert row.held_out == pytest.approx(chance, abs=0.04)
    assert row.accuracy >= row.held_out - 0.02  # the best of several is lucky


def test_accuracies_equal_a_loop_over_words() -> None:
    words, heads = 9, tree(9, 5)
    attention = maps(words, 3).double()
    seen = [True] * 9
    seen[4] = False
    hits = dependency_hits(attention, ["w"] * words, heads, ["r"] * words, seen=seen)
    kept = [i for i in range(words) if heads[i] >= 0 and i != 4 and heads[i] != 4]
    assert len(hits.groups) == len(kept)
    for n, word in enumerate(kept):
        others = [other for other in range(words) if other != word]
        for layer in range(2):
            for head in range(3):
                one = attention[layer, head]
                assert hits.right[n, 0, layer, head] == (max(others, key=lambda o: one[word, o]) == heads[word])
                assert hits.right[n, 1, layer, head] == (max(others, key=lambda o: one[o, word]) == heads[word])
        for k in (-3, -2, -1, 1, 2):
            assert hits.baselines[f"{k:+d}"][n] == (min(word + k, words - 1) == heads[word])


def test_a_head_without_attention_selects_nothing() -> None:
    blind = torch.eye(3).expand(1, 1, 3, 3)  # only at itself
    assert not dependency_hits(blind, ["a", "b", "c"], [-1, 0, 0], ["root", "x", "x"]).right.any()


def test_possessives_are_read_from_their_marker() -> None:
    words, heads = ["dog", "'s", "tail"], [2, 0, -1]
    one = torch.zeros(1, 1, 3, 3)
    one[..., 0, 1] = 1.0  # the possessor looks at the mark
    one[..., 1, 2] = 1.0  # the mark looks at what is possessed
    hits = dependency_hits(one, words, heads, ["nmod:poss", "case", "root"])
    assert hits.right[:, 0, 0, 0].tolist() == [True, False]
    assert [bool(hits.baselines[k][0]) for k in ("+1", "+2")] == [True, True]  # from the mark; +2 ends at the last word
    plain = dependency_hits(one, words, heads, ["nmod", "case", "root"])
    assert not plain.right[0, 0, 0, 0]


def test_the_interval_is_wilsons_and_widens_with_dependence() -> None:
    hits = np.random.default_rng(1).random(200) < 0.7
    low, high = interval(hits, np.zeros(200, dtype=np.int64))
    theirs = binomtest(int(hits.sum()), 200).proportion_ci(0.95, "wilson")
    assert (low, high) == pytest.approx((theirs.low, theirs.high), abs=1e-6)
    all_right = interval(np.full(10, True), np.arange(10))
    assert all_right == pytest.approx(tuple(binomtest(10, 10).proportion_ci(0.95, "wilson")), abs=1e-6)
    # ten copies of each item in one text tell no more than the item itself
    low, high = interval(np.repeat(hits, 10), np.repeat(np.arange(200), 10))
    assert (low, high) == pytest.approx((theirs.low, theirs.high), abs=1e-3)


def test_unknown_relations_and_empty_selections_are_reported() -> None:
    with pytest.raises(ValueError, match="no group 'nsubj': valid are all, "):
        corpus(3, planted=False).best("nsubj")
    nothing = dependency_hits(maps(1, 1), ["a"], [-1], ["root"])
    with pytest.raises(ValueError, match="no items to score"):
        Selections.of([nothing], ["a", "b"], DIRECTIONS)


def test_antecedents_are_found() -> None:
    words = ["Ann", "saw", "Bob", "and", "Ann", "greeted", "him", "."]
    mentions = [Referring("1", 0, "PROPN"), Referring("2", 2, "PROPN"), Referring("1", 4, "PROPN"),
                Referring("2", 6, "PRON")]  # fmt: skip
    attention = torch.full((1, 3, 8, 8), 0.01)
    attention[0, 0, 4, 0] = attention[0, 0, 6, 2] = 0.5  # right, though it looks more at what is no mention:
    attention[0, 0, 4, 3] = attention[0, 0, 6, 7] = 0.9
    attention[0, 1, 0, 4] = attention[0, 1, 2, 6] = 0.5  # the antecedent looks at the mention
    hits = coreference_hits(attention, words, mentions)
    assert hits is not None
    assert hits.groups == ["proper noun", "pronoun"]
    assert hits.right[:, 0, 0, 0].all()
    assert hits.right[:, 1, 0, 1].all()
    assert hits.right[:, 0, 0, 2].tolist() == [True, False]  # equal ones: the first
    assert hits.baselines[NEAREST].tolist() == [False, False]
    assert hits.baselines[SAME_WORD].tolist() == [True, False]
    assert Selections.of([hits], ["a"], TOWARDS).best("pronoun").accuracy == 1.0
    assert coreference_hits(attention, words, mentions[:2]) is None
