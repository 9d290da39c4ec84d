"""Probing of attention heads for syntax and coreference on a treebank (Clark et al. 2019, sections 4 and 5).

    heads = probe(manyheads.load(MODEL), "dev.conllu", train="train.conllu")
    heads.dependencies.best("obj")      # the head that finds the most objects of verbs, and its accuracy

The command for the terminal is `manyheads probe MODEL --treebank FILE`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from math import isnan
from pathlib import Path
from typing import NamedTuple

import numpy as np
from torch import Tensor

from manyheads.analysis.heads import Head, HeadStatistics, coreference, dependency
from manyheads.analysis.heads.probing_classifiers import HeadParser, Parsed, attachment, distances, train_parser
from manyheads.analysis.heads.selections import Best, Hits, Selections, interval
from manyheads.data.readers.treebank import Sentence, Treebank, read_treebank
from manyheads.errors import UserError
from manyheads.files import JsonObject
from manyheads.tasks.heads.word_maps import LoadedModel, WordReader, Words

WINDOW = 128  # maximum number of tokens in a window of a document, for coreference, as in Clark et al. 2019
MINIMUM = 50  # minimum number of words that a syntactic relation must have in the treebank to be reported
# Maximum number of sentences for training the parsers. The attention maps of all sentences must fit in memory.
MAX_TRAINING = 3000
CHUNK = 256  # number of sentences for which a parser predicts the trees in one batch


class Score(NamedTuple):
    """Fraction of words whose syntactic head a parser finds (UAS), with its 95% confidence interval."""

    value: float
    low: float
    high: float
    words: int


@dataclass(frozen=True)
class Probe:
    """Results of probing a model's attention heads on a treebank.

    model         path of the model
    treebank      path of the treebank
    layers        names of the layers with attention
    dependencies  scores of the attention heads for each syntactic relation, named as in the treebank
    coreference   scores of the attention heads for each type of mention; None if the treebank has no entity with two or
                  more mentions
    parsers       scores of the parsers that use attention weights, and of the baseline parser; empty without training
                  data
    heads         statistics of every attention head on these sentences
    counts        numbers of sentences and words that were read, and that were skipped
    """

    model: str
    treebank: str
    layers: tuple[str, ...]
    dependencies: Selections
    coreference: Selections | None
    parsers: dict[str, Score]
    heads: list[Head]
    counts: dict[str, int]

    def __repr__(self) -> str:
        row = self.dependencies.best()
        return (
            f"Probe({self.model!r} on {self.treebank!r}: {len(self.layers)} layers, "
            f"best head {row.layer}-{row.head} finds {row.accuracy:.3f} "
            f"of {row.items:,} words' heads, best offset {row.base:.3f})"
        )

    def document(self, minimum: int = MINIMUM) -> JsonObject:
        """Return all results as JSON data.

        minimum  minimum number of words of a syntactic relation; relations with fewer words are left out
        """
        return {
            "model": self.model,
            "treebank": self.treebank,
            "counts": self.counts,
            "layers": list(self.layers),
            "relations": [best_as_json(row) for row in self.dependencies.table(minimum)],
            "coreference": None
            if self.coreference is None
            else [best_as_json(row) for row in self.coreference.table()],
            "parsers": {name: score._asdict() for name, score in self.parsers.items()},
            "heads": [head._asdict() for head in self.heads],
        }


def probe(
    model: LoadedModel, treebank: str | Path | Treebank, *, train: str | Path | Treebank | None = None,
    skip_bad_lines: bool = False,
) -> Probe:  # fmt: skip
    """Measure which attention heads of a model follow syntactic relations and coreference.

    model     model that `manyheads.load` returns
    treebank  treebank on which the heads are scored: a CoNLL-U file, or a treebank in memory
    train     treebank for training parsers on attention weights (section 5 of the paper), of up to 3,000 sentences.
              By default, no parsers are trained

    Raises UserError for a model without attention over texts, and for a treebank without a word that can be scored.
    """
    words = WordReader(model)
    bank = _treebank(treebank, skip_bad_lines)
    train_bank = None if train is None else _treebank(train, skip_bad_lines)
    parsers = {} if train_bank is None else _train_parsers(words, train_bank)
    train_counts = {} if train_bank is None else {
        "train_sentences": min(len(train_bank), MAX_TRAINING), "train_skipped": sum(train_bank.skips.values()),
        "train_too_long": words.too_long, "train_unread": max(0, len(train_bank) - MAX_TRAINING),
    }  # fmt: skip
    words.too_long = words.unseen = 0
    statistics = HeadStatistics()
    hits, attached = _dependencies(words, bank.sentences, statistics, parsers)
    layers, counts = words.layers, {
        "sentences": len(bank), "words": sum(len(s.words) for s in bank.sentences), "multiword": bank.multiword,
        "empty": bank.empty, "skipped": sum(bank.skips.values()), "too_long": words.too_long,
        "without_tokens": words.unseen, **train_counts,
    }  # fmt: skip
    if not sum(len(sentence.groups) for sentence in hits):
        raise UserError(
            f"{bank.file}: found no word to score in {len(bank):,} sentences. "
            f"{words.too_long:,} sentences exceed the model's limit, {words.unseen:,} words have no tokens, "
            "and roots have no head. Use a model with more positions, or other data."
        )
    mentions = _coreference(words, bank.sentences)
    return Probe(
        str(model.path), str(bank.file), layers,
        Selections.of(hits, layers, dependency.DIRECTIONS),
        Selections.of(mentions, layers, coreference.DIRECTIONS) if mentions else None,
        {name: _score(right) for name, right in attached.items()}, statistics.heads(), counts,
    )  # fmt: skip


def _treebank(treebank: str | Path | Treebank, skip_bad_lines: bool) -> Treebank:
    return treebank if isinstance(treebank, Treebank) else read_treebank(treebank, skip_bad_lines=skip_bad_lines)


def _words(sentence: Sentence) -> Words:
    return Words(sentence.words, sentence.spaces)


def _dependencies(
    words: WordReader, sentences: list[Sentence], statistics: HeadStatistics, parsers: dict[str, HeadParser]
) -> tuple[list[Hits], dict[str, list[list[bool]]]]:
    """Return which attention heads point to each word's syntactic head, and which parsers find it."""
    hits: list[Hits] = []
    attached: dict[str, list[list[bool]]] = {name: [] for name in parsers}
    pending: list[dict[str, Parsed]] = []

    def parse() -> None:
        for name, parser in parsers.items():
            attached[name] += attachment(parser, [views[name] for views in pending])
        pending.clear()

    for number, maps, seen in words.maps([_words(sentence) for sentence in sentences], statistics):
        s = sentences[number]
        hits.append(dependency.dependency_hits(maps, s.words, s.heads, s.relations, seen=seen, cluster=number))
        if parsers:
            pending.append(_views(words, s, maps, seen))
        if len(pending) == CHUNK:
            parse()
    if pending:
        parse()
    return hits, attached


def _views(words: WordReader, sentence: Sentence, maps: Tensor, seen: list[bool]) -> dict[str, Parsed]:
    """Return the features of a sentence that each parser reads: attention maps or word distances."""
    heads = [h if h >= 0 and seen[i] and seen[h] else -1 for i, h in enumerate(sentence.heads)]
    vectors, flat = words.vectors(_words(sentence)), maps.flatten(0, 1).half()
    return {
        "attention": Parsed(flat, heads),
        "attention + words": Parsed(flat, heads, vectors),
        "distances + words": Parsed(distances(len(heads)), heads, vectors),
    }


def _train_parsers(words: WordReader, bank: Treebank) -> dict[str, HeadParser]:
    sentences = [sentence for sentence in bank.sentences[:MAX_TRAINING] if len(sentence.words) > 1]
    views = [_views(words, sentences[number], maps, seen)
             for number, maps, seen in words.maps([_words(sentence) for sentence in sentences])]  # fmt: skip
    if not views:
        raise UserError(f"{bank.file}: found no training sentence with two words or more that fits the model")
    return {name: train_parser([sentence[name] for sentence in views]) for name in views[0]}


def _coreference(words: WordReader, sentences: list[Sentence]) -> list[Hits]:
    """Return, for each mention, which attention heads find its antecedent: an earlier mention of the same entity.

    A document is read in windows of whole sentences.
    """
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
    token_count, max_tokens = 0, min(WINDOW, words.max_tokens or WINDOW)
    for sentence in sentences:
        length = words.length(_words(sentence))
        if window and (token_count + length + len(words.frame) > max_tokens or window[0].document != sentence.document):
            yield window
            window, token_count = [], 0
        window.append(sentence)
        token_count += length
    if window:
        yield window


def _score(attached: list[list[bool]]) -> Score:
    hits = np.array([right for sentence in attached for right in sentence], dtype=np.bool_)
    texts = np.repeat(np.arange(len(attached)), [len(sentence) for sentence in attached])
    return Score(float(hits.mean()), *interval(hits, texts), len(hits))


def best_as_json(row: Best) -> JsonObject:
    """Return the best head of a relation as JSON data, with None for a held-out accuracy that is NaN."""
    values = row._asdict()
    return {**values, "held_out": None if isnan(row.held_out) else row.held_out}
