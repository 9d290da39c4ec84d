"""Predictor for tagging, which returns the words of a text with their tags, and the named entities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, overload

from manyheads import directory
from manyheads.calls import checked_methods
from manyheads.core.runtime import ComputeConfig
from manyheads.data.readers.conll import Tagged, words_of
from manyheads.data.text.text_faults import check_texts
from manyheads.data.text.windows import word_windows
from manyheads.displays import Table
from manyheads.models.bert import Bert
from manyheads.models.bert_features import BertFeatures
from manyheads.tasks.evaluation import Counts, EvaluationResult, record_of, scored_data
from manyheads.tasks.inputs import STRING, Texts, rows_of
from manyheads.tasks.predictor import TextPredictor
from manyheads.tasks.tagging.metrics import count_entities, entities, tagging_metrics
from manyheads.tasks.tagging.objective import tag_log_probabilities


class TaggedWord(NamedTuple):
    """Word of a text with the predicted tag and the probability of this tag.

    The word is the part of the text from character `start` up to but not including `end`.
    """

    text: str
    tag: str
    probability: float
    start: int
    end: int


class FoundEntity(NamedTuple):
    """Named entity, which is the part of the text from character `start` up to but not including `end`.

    The probability of the entity is the mean over its words.
    """

    kind: str
    text: str
    probability: float
    start: int
    end: int


@dataclass(frozen=True)
class TaggedText:
    """Text with the predicted tag of each word. It prints as word/TAG pairs."""

    text: str
    words: list[TaggedWord]

    @property
    def entities(self) -> list[FoundEntity]:
        """Named entities of the text, merged from the tags of their words.

        >>> all(entity.kind == "PLACE" for entity in tagger.tag("the cat sat").entities)
        True
        """
        found_entities = []
        for kind, first, end in entities([word.tag for word in self.words]):
            inside = self.words[first:end]
            start, stop = inside[0].start, inside[-1].end
            probability = sum(word.probability for word in inside) / len(inside)
            found_entities.append(FoundEntity(kind, self.text[start:stop], probability, start, stop))
        return found_entities

    def __str__(self) -> str:
        return " ".join(f"{word.text}/{word.tag}" for word in self.words)


@dataclass(frozen=True, repr=False)
class EntityEvaluation(EvaluationResult):
    """Result of a tagger on test data, with the counts of each entity type, and of all types under the empty string."""

    counts: dict[str, Counts]

    def by_label(self) -> Table:
        """Return the entity count, precision, recall and F1 of each entity type, then their averages.

        The macro average weights all types alike, the weighted average each type by its number of entities.
        """
        kinds = [(kind, counts) for kind, counts in self.counts.items() if kind]
        rows = Table(counts.row(kind or "micro avg") for kind, counts in [*kinds, ("", self.counts[""])])
        items = [row["items"] for row in rows[:-1]]
        for name, weights in (("macro avg", [1] * len(items)), ("weighted avg", items)):
            means = {
                share: sum(w * row[share] for w, row in zip(weights, rows, strict=False)) / max(sum(weights), 1)
                for share in ("precision", "recall", "f1")
            }
            rows.append({"label": name, "items": sum(items), **means})
        return rows


@checked_methods
class Tagger(TextPredictor[Bert | BertFeatures]):
    """Tagger with its tokenizer, as returned by `manyheads.load` for a model that labels tokens.

    reading  limit max_length: long texts are read in windows of at most this number of tokens. None: the limit of the
             training run, or if it is unknown, the model's limit
    """

    verbs: ClassVar = ("tag", "embed", "attend", "evaluate")
    done: ClassVar = "tagged"
    reports = ("by_label",)

    def __init__(self, loaded: directory.Loaded, compute: ComputeConfig, reading: dict[str, int] | None = None) -> None:
        super().__init__(loaded, compute)
        reading = reading or record_of(self.path).get("reading", {})
        longest = self.model.config.max_positions
        self._limit = min(longest, reading.get("max_length", longest))

    @overload
    def tag(self, texts: str) -> TaggedText: ...
    @overload
    def tag(self, texts: Texts | list[list[str]]) -> list[TaggedText]: ...
    def tag(self, texts: str | Texts | list[list[str]]) -> TaggedText | list[TaggedText]:
        """Return the words of every text with their tags, in input order. Texts may have any length.

        A text is split into words by `data.readers.conll.words_of`: at spaces, with punctuation at the ends of a word
        split off. It may be given as a list of words instead. Character positions then refer to the words joined by
        spaces.

            >>> tagged = tagger.tag("the cat sat")
            >>> [word.text for word in tagged.words]
            ['the', 'cat', 'sat']
        """
        if isinstance(texts, str):
            return self.tag([texts])[0]
        lines = rows_of(texts, kinds={**STRING, list: "a list of words", tuple: "a tuple of words"})[0]
        whole = [text if isinstance(text, str) else " ".join(rows_of(text, "word")[0]) for text in lines]
        check_texts(whole)
        spans = [words_of(text) if isinstance(text, str) else _word_offsets(text) for text in lines]
        sentences = [[text[a:b] for a, b in words] for text, words in zip(whole, spans, strict=True)]
        windows = word_windows(self.tokenizer, sentences, self._limit)
        model = self.compiled
        scores = tag_log_probabilities(model.module, windows, list(map(len, sentences)), model.compute)
        labels = self.model.config.labels
        tagged = []
        for text, words, score in zip(whole, spans, scores, strict=True):
            best, at = score.exp().max(1)
            rows = zip(words, best.tolist(), at.tolist(), strict=True)
            tagged.append(TaggedText(text, [TaggedWord(text[a:b], labels[i], p, a, b) for (a, b), p, i in rows]))
        return tagged

    def evaluate(self, tagged: object = None) -> EvaluationResult:
        """Tag the sentences of a data set, and compare the predicted tags with the right tags.

        The data are a `Tagged`, or any data that the method `outcome` reads.
        """
        if not isinstance(tagged, Tagged):
            return self.outcome(tagged)
        tagged.check_labels(self.model.config.labels)
        outputs = self.tag(tagged.words)
        predicted = [[word.tag for word in text.words] for text in outputs]
        quality = []
        for guess, truth in zip(predicted, tagged.tags, strict=True):
            counts = count_entities([guess], [truth])[""]
            quality.append(counts.f1 if counts.found or counts.in_reference else 1.0)
        references = [
            " ".join(f"{word}/{tag}" for word, tag in zip(words, tags, strict=True))
            for words, tags in zip(tagged.words, tagged.tags, strict=True)
        ]
        metrics = tagging_metrics(predicted, tagged.tags)
        counts_by_kind = count_entities(predicted, tagged.tags)
        return EntityEvaluation(
            [text.text for text in outputs], list(map(str, outputs)), references, quality, metrics,
            counts_by_kind, unit="entity F1 of a sentence",
        )  # fmt: skip

    def outcome(self, data: object = None, *, skip_bad_lines: bool = False) -> EvaluationResult:
        """Evaluate the model on the test data of its training run, or on `data`.

        `data` is a file in CoNLL's column format, or a directory with a test file.
        """
        from manyheads.data.sources.corpora import TaggedSource

        labels = self.model.config.labels
        return self.evaluate(scored_data(self.path, data, TaggedSource(), skip_bad_lines=skip_bad_lines, labels=labels))


def _word_offsets(words: Sequence[str]) -> list[tuple[int, int]]:
    """Join words by spaces, and return the start and end character of each word in the joined text."""
    spans, at = [], 0
    for word in words:
        spans.append((at, at + len(word)))
        at += len(word) + 1
    return spans
