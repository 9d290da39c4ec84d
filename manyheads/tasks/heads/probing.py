"""What the heads of a model know of syntax and of who is meant, on a treebank (Clark et al. 2019, sections 4 and 5).

    heads = probe(manyheads.load(MODEL), "dev.conllu", train="train.conllu")
    heads.dependencies.best("obj")      # which head finds the objects of verbs, and how often

On the terminal: `manyheads probe MODEL --treebank FILE`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from math import isnan
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from manyheads.analysis.heads import Head, HeadStatistics, coreference, dependency
from manyheads.analysis.heads.probing_classifiers import HeadParser, Parsed, attachment, distances, train_parser
from manyheads.analysis.heads.selections import Best, Hits, Selections, interval
from manyheads.analysis.heads.stanford import PUBLISHED, stanford
from manyheads.data.readers.treebank import Sentence, Treebank, read_treebank
from manyheads.errors import UserError
from manyheads.tasks.heads.word_maps import LoadedModel, WordReader, Words

WINDOW = 128  # tokens of a document that are read at once for coreference, as in the paper
MINIMUM = 50  # words of a relation that is told of
TRAINED_ON = 3000  # sentences at most, whose maps are all kept in memory
CHUNK = 256  # sentences that are parsed at once


class Score(NamedTuple):
    """The share of the words with a head whose head is found (UAS), and where it lies with 95% confidence."""

    value: float
    low: float
    high: float
    words: int


@dataclass(frozen=True)
class Probe:
    """What the heads of a model do on a treebank.

    dependencies  by relation, as the treebank names them
    stanford      by relation, as the paper names them
    coreference   by kind of mention; None where the treebank marks no mentions, or none is mentioned again
    parsers       those that see attention alone, and their baseline; empty without data to train them on
    heads         statistics of every head on these sentences, a row each
    counts        of what was read, and what was left out
    """

    model: str
    treebank: str
    layers: tuple[str, ...]
    dependencies: Selections
    stanford: Selections
    coreference: Selections | None
    parsers: dict[str, Score]
    heads: list[Head]
    counts: dict[str, int]

    def __repr__(self) -> str:
        row = self.dependencies.best()
        return (
            f"Probe({self.model!r} on {self.treebank!r}: {len(self.layers)} layers, best head {row.layer}-{row.head} "
            f"finds {row.accuracy:.3f} of {row.items:,} words' heads, best offset {row.base:.3f})"
        )

    def published(self, minimum: int = MINIMUM) -> list[Best]:
        """The rows of the paper's table, in its order, as far as the treebank has them."""
        rows = {row.group: row for row in self.stanford.table(minimum)}
        return [rows[name] for name in PUBLISHED if name in rows]

    def document(self, minimum: int = MINIMUM) -> dict[str, Any]:
        """All of it, for JSON. `minimum`: words of a relation."""
        return {
            "model": self.model,
            "treebank": self.treebank,
            "counts": self.counts,
            "layers": list(self.layers),
            "relations": [_row(row) for row in self.dependencies.table(minimum)],
            "published_relations": [
                {**_row(row), "published": PUBLISHED[row.group]._asdict()} for row in self.published(minimum)
            ],
            "coreference": None if self.coreference is None else [_row(row) for row in self.coreference.table()],
            "parsers": {name: score._asdict() for name, score in self.parsers.items()},
            "heads": [head._asdict() for head in self.heads],
        }


def probe(
    model: LoadedModel, treebank: str | Path | Treebank, *, train: str | Path | Treebank | None = None,
    skip_bad_lines: bool = False,
) -> Probe:  # fmt: skip
    """Analyse the heads of a model, as `manyheads.load` gives it.

    treebank  what the heads are scored on: a CoNLL-U file, or what was read of one
    train     another one, to train the parsers of section 5 on (its first 3,000 sentences)

    Raises UserError for a model without attention over texts, and for a treebank that does not fit.
    """
    words = WordReader(model)
    bank = _treebank(treebank, skip_bad_lines)
    trained_on = None if train is None else _treebank(train, skip_bad_lines)
    parsers = {} if trained_on is None else _trained(words, trained_on)
    of_training = {} if trained_on is None else {
        "train_sentences": min(len(trained_on), TRAINED_ON), "train_skipped": sum(trained_on.skips.values()),
        "train_too_long": words.too_long, "train_unread": max(0, len(trained_on) - TRAINED_ON),
    }  # fmt: skip
    words.too_long = words.unseen = 0
    statistics = HeadStatistics()
    hits, in_stanford, attached = _dependencies(words, bank.sentences, statistics, parsers)
    layers, counts = words.layers, {
        "sentences": len(bank), "words": sum(len(s.words) for s in bank.sentences), "multiword": bank.multiword,
        "empty": bank.empty, "skipped": sum(bank.skips.values()), "too_long": words.too_long,
        "without_tokens": words.unseen, **of_training,
    }  # fmt: skip
    if not sum(len(sentence.groups) for sentence in hits):
        raise UserError(
            f"{bank.file}: no word to score in {len(bank):,} sentences: {words.too_long:,} are longer than the model "
            f"takes, of {words.unseen:,} words the tokenizer makes nothing, and roots and their like have no head"
        )
    mentions = _coreference(words, bank.sentences)
    return Probe(
        str(model.path), str(bank.file), layers,
        Selections.of(hits, layers, dependency.DIRECTIONS), Selections.of(in_stanford, layers, dependency.DIRECTIONS),
        Selections.of(mentions, layers, coreference.DIRECTIONS) if mentions else None,
        {name: _score(right) for name, right in attached.items()}, statistics.heads(), counts,
    )  # fmt: skip


def _treebank(treebank: str | Path | Treebank, skip_bad_lines: bool) -> Treebank:
    return treebank if isinstance(treebank, Treebank) else read_treebank(treebank, skip_bad_lines=skip_bad_lines)


def _words(sentence: Sentence) -> Words:
    return Words(sentence.words, sentence.spaces)


def _dependencies(
    words: WordReader, sentences: list[Sentence], statistics: HeadStatistics, parsers: dict[str, HeadParser]
) -> tuple[list[Hits], list[Hits], dict[str, list[list[bool]]]]:
    """Of every sentence which heads are right, on the treebank's arcs and on Stanford's, and which words each parser
    attaches rightly."""
    hits: list[Hits] = []
    in_stanford: list[Hits] = []
    attached: dict[str, list[list[bool]]] = {name: [] for name in parsers}
    waiting: list[dict[str, Parsed]] = []

    def parse() -> None:
        for name, parser in parsers.items():
            attached[name] += attachment(parser, [views[name] for views in waiting])
        waiting.clear()

    for number, maps, seen in words.maps([_words(sentence) for sentence in sentences], statistics):
        s = sentences[number]
        hits.append(dependency.dependency_hits(maps, s.words, s.heads, s.relations, seen=seen, cluster=number))
        arcs = stanford(s.words, s.heads, s.relations, s.tags)
        in_stanford.append(dependency.dependency_hits(maps, s.words, *arcs, seen=seen, cluster=number))
        if parsers:
            waiting.append(_views(words, s, maps, seen))
        if len(waiting) == CHUNK:
            parse()
    if waiting:
        parse()
    return hits, in_stanford, attached


def _views(words: WordReader, sentence: Sentence, maps: Any, seen: list[bool]) -> dict[str, Parsed]:
    """What each of the parsers sees of a sentence."""
    heads = [h if h >= 0 and seen[i] and seen[h] else -1 for i, h in enumerate(sentence.heads)]
    vectors, flat = words.vectors(_words(sentence)), maps.flatten(0, 1).half()
    return {
        "attention": Parsed(flat, heads),
        "attention + words": Parsed(flat, heads, vectors),
        "distances + words": Parsed(distances(len(heads)), heads, vectors),
    }


def _trained(words: WordReader, bank: Treebank) -> dict[str, HeadParser]:
    sentences = [sentence for sentence in bank.sentences[:TRAINED_ON] if len(sentence.words) > 1]
    views = [_views(words, sentences[number], maps, seen)
             for number, maps, seen in words.maps([_words(sentence) for sentence in sentences])]  # fmt: skip
    if not views:
        raise UserError(f"{bank.file}: no sentence of two words or more that fits into the model to train on")
    return {name: train_parser([sentence[name] for sentence in views]) for name in views[0]}


def _coreference(words: WordReader, sentences: list[Sentence]) -> list[Hits]:
    """Windows of whole sentences of a document, as many as fit."""
    all_hits: list[Hits] = []
    windows = [window for window in _windows(words, sentences) if any(s.mentions for s in window)]
    texts = [Words([w for s in window for w in s.words], [w for s in window for w in s.spaces]) for window in windows]
    counts = Counter((s.document, m.entity) for s in sentences for m in s.mentions)
    for number, maps, seen in words.maps(texts):
        referring, first = [], 0
        for s in windows[number]:
            for mention in s.mentions:
                head = s.head_of(mention)
                if counts[s.document, mention.entity] > 1 and seen[first + head]:
                    referring.append(coreference.Referring(mention.entity, first + head, s.tags[head]))
            first += len(s.words)
        document = windows[number][0].document
        hits = coreference.coreference_hits(maps, texts[number].words, referring, cluster=document)
        if hits is not None:
            all_hits.append(hits)
    return all_hits


def _windows(words: WordReader, sentences: list[Sentence]) -> Iterator[list[Sentence]]:
    window: list[Sentence] = []
    held, room = 0, min(WINDOW, words.room or WINDOW)
    for sentence in sentences:
        length = words.length(_words(sentence))
        if window and (held + length + len(words.frame) > room or window[0].document != sentence.document):
            yield window
            window, held = [], 0
        window.append(sentence)
        held += length
    if window:
        yield window


def _score(attached: list[list[bool]]) -> Score:
    hits = np.array([right for sentence in attached for right in sentence], dtype=np.bool_)
    texts = np.repeat(np.arange(len(attached)), [len(sentence) for sentence in attached])
    return Score(float(hits.mean()), *interval(hits, texts), len(hits))


def _row(row: Best) -> dict[str, Any]:
    values = row._asdict()
    return {**values, "held_out": None if isnan(row.held_out) else row.held_out}
