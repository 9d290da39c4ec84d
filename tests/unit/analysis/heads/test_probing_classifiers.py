"""Attention-only parsers: scipy's optimum, a known head, useful words, independence of the batch size."""

import numpy as np
import pytest
import torch
from torch import Tensor

from manyheads.analysis.heads.probing_classifiers import HeadParser, Parsed, attachment, distances, parse, train_parser


def tree(words: int, random: np.random.Generator) -> list[int]:
    return [-1, *(int(random.integers(i)) for i in range(1, words))]


def sentences(count: int, strength: float, seed: int = 1) -> list[Parsed]:
    """Three heads: noise, noise with something of the tree, and something of the tree the other way round."""
    random, generator = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    parsed = []
    for _ in range(count):
        words = int(random.integers(3, 9))
        heads = tree(words, random)
        scores = torch.randn(3, words, words, generator=generator)
        for word, head in enumerate(heads):
            if head >= 0:
                scores[1, word, head] += strength
                scores[2, head, word] += strength
        parsed.append(Parsed(scores.softmax(-1), heads))
    return parsed


def score(train: list[Parsed], test: list[Parsed], rate: float | None = None) -> float:
    return float(np.mean([right for each in attachment(train_parser(train, rate=rate), test) for right in each]))


def test_parsers_with_tree_attention_are_perfect_and_with_noise_are_not() -> None:
    known, unknown = sentences(60, 12.0), sentences(60, 0.0)
    assert score(known[:40], known[40:]) == 1.0
    chance = np.mean([1 / (len(s.heads) - 1) for s in unknown for h in s.heads if h >= 0])
    assert score(unknown[:40], unknown[40:]) < chance + 0.15


def test_word_vectors_help_to_select_heads() -> None:
    """Each of two heads finds one kind of dependents, and only the word shows its kind."""
    random = np.random.default_rng(2)
    examples = []
    for _ in range(120):
        words, kinds = 7, random.integers(2, size=7)
        heads, maps = tree(7, random), torch.full((2, words, words), 0.05)
        for word, head in enumerate(heads):
            wrong = int(random.integers(words))
            maps[kinds[word], word, head] = 0.6
            maps[1 - kinds[word], word, wrong] = 0.6
        examples.append(Parsed(maps, heads, torch.eye(2)[torch.from_numpy(kinds)]))
    with_words = score(examples[:100], examples[100:], rate=0.1)
    blind = [sentence._replace(vectors=None) for sentence in examples]
    without = score(blind[:100], blind[100:])
    assert with_words > 0.95
    assert with_words > without + 0.2


def test_predictions_do_not_depend_on_the_batch() -> None:
    examples = [s._replace(vectors=torch.randn(len(s.heads), 4)) for s in sentences(40, 1.0)]
    parser = HeadParser(3, 4)
    for parameter in parser.parameters():
        torch.nn.init.normal_(parameter)
    together = parse(parser, examples)
    assert together == [parse(parser, [sentence])[0] for sentence in examples]
    assert all(guess != word for guesses in together for word, guess in enumerate(guesses))


def test_words_are_scored_by_the_formula() -> None:
    parser, words = HeadParser(2, 3), 4
    for parameter in parser.parameters():
        torch.nn.init.normal_(parameter)
    maps, v = torch.rand(1, 2, words, words), torch.randn(1, words, 3)
    scores = parser(maps, torch.tensor([words]), v)[0]
    assert parser.words is not None
    for j in range(words):
        others = [i for i in range(words) if i != j]

        def scored(i: int, j: int = j) -> Tensor:
            a, w, c = maps[0], parser.words, parser.constant
            assert w is not None
            forwards = (w[0, 0] @ v[0, i] + w[0, 1] @ v[0, j] + c[0]) @ a[:, i, j]
            return forwards + (w[1, 0] @ v[0, i] + w[1, 1] @ v[0, j] + c[1]) @ a[:, j, i]

        torch.testing.assert_close(scores[j, others], torch.stack([scored(i) for i in others]).log_softmax(-1))


def test_distances_between_words() -> None:
    views = distances(15).float()
    assert views.shape == (21, 15, 15)
    assert (views.sum(0) == 1).all()
    assert views[10 - 1, 3, 2] == views[10 + 4, 3, 7] == views[20, 0, 14] == 1
    with pytest.raises(ValueError, match="no sentence"):
        train_parser([])
