"""Accuracies of a model's attention heads for the relations in table 1 of Clark et al. 2019."""

from __future__ import annotations

from manyheads.analysis.heads import dependency
from manyheads.analysis.heads.selections import Best, Selections
from manyheads.data.readers.treebank import Treebank
from manyheads.files import JsonObject
from manyheads.tasks.heads.probing import Probe, best_as_json
from manyheads.tasks.heads.word_maps import LoadedModel, WordReader, Words
from papers.heads.published import PUBLISHED
from papers.heads.stanford import stanford


def stanford_selections(model: LoadedModel, treebank: Treebank) -> Selections:
    """Return which heads find each word's syntactic head, grouped by the relations of Stanford Dependencies."""
    words = WordReader(model)
    hits = []
    for number, maps, seen in words.maps([Words(s.words, s.spaces) for s in treebank.sentences]):
        s = treebank.sentences[number]
        heads, relations = stanford(s.words, s.heads, s.relations, s.tags)
        hits.append(dependency.dependency_hits(maps, s.words, heads, relations, seen=seen, cluster=number))
    return Selections.of(hits, words.layers, dependency.DIRECTIONS)


def published_rows(selections: Selections, minimum: int) -> list[Best]:
    """Return the best head of each relation in the paper's table that occurs at least `minimum` times, in its order."""
    rows = {row.group: row for row in selections.table(minimum)}
    return [rows[name] for name in PUBLISHED if name in rows]


def document(results: Probe, selections: Selections, minimum: int) -> JsonObject:
    """Return the results of `manyheads probe` with the relations of the paper, as JSON data."""
    rows = published_rows(selections, minimum)
    published = [{**best_as_json(row), "published": PUBLISHED[row.group]._asdict()} for row in rows]
    return {**results.document(minimum), "published_relations": published}
