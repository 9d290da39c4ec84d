"""Accuracies of a model's attention heads, next to those of BERT-base in table 1 of Clark et al. 2019.

python -m papers.heads MODEL --treebank FILE [--train FILE] [--json]
"""

from __future__ import annotations

import argparse

import manyheads
from manyheads.analysis.heads.selections import Selections
from manyheads.cli.output import document as print_document
from manyheads.cli.output import table
from manyheads.cli.parser import whole
from manyheads.data.readers.treebank import read_treebank
from manyheads.tasks.heads.probing import MINIMUM, probe
from papers.command import about, run
from papers.heads.comparison import document, published_rows, stanford_selections
from papers.heads.published import ANTECEDENT_BASELINES, ANTECEDENTS, PUBLISHED


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m papers.heads", description=about(__doc__))
    parser.add_argument("model", metavar="MODEL", help="directory of a model that reads texts")
    parser.add_argument("--treebank", required=True, metavar="FILE", help="sentences with dependency trees, in CoNLL-U")
    parser.add_argument("--train", metavar="FILE", help="a second treebank, to train parsers on attention weights")
    parser.add_argument("--minimum", type=whole(1, 10**9), default=MINIMUM, metavar="N",
                        help=f"omit relations with fewer words (default: {MINIMUM})")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print the record of `manyheads probe` and these relations")
    options = parser.parse_args(arguments)
    treebank, model = read_treebank(options.treebank), manyheads.load(options.model)
    results = probe(model, treebank, train=options.train)
    selections = stanford_selections(model, treebank)
    if options.json:
        return print_document(document(results, selections, options.minimum))
    print("heads are counted from 1, as in the paper; BERT-base: published results on the Wall Street Journal\n")
    _relations(selections, options.minimum)
    if results.coreference is not None:
        print()
        _antecedents(results.coreference)


def _relations(selections: Selections, minimum: int) -> None:
    rows, notes = [], []
    for row in published_rows(selections, minimum):
        paper = PUBLISHED[row.group]
        rows.append((
            row.group, row.items, f"{row.layer + 1}-{row.head + 1}", f"{row.accuracy:.3f}", f"{row.base:.3f}",
            f"({row.baseline})", f"{paper.layer}-{paper.head}", f"{paper.accuracy:.3f}", f"{paper.base:.3f}",
            f"({paper.offset})",
        ))  # fmt: skip
        if paper.note:
            notes.append(f"  {row.group}: {paper.note}")
    table([("relation", "words", "head", "accuracy", "offset", "", "BERT-base", "accuracy", "offset", ""), *rows])
    if notes:
        print("\nBERT-base's", *notes, sep="\n")


def _antecedents(mentions: Selections) -> None:
    rows = [
        (row.group, row.items, f"{row.layer + 1}-{row.head + 1}", f"{row.accuracy:.3f}",
         *(f"{base:.3f}" for base in row.baselines.values()), f"{ANTECEDENTS[row.group]:.3f}")
        for row in mentions.table()
    ]  # fmt: skip
    table([("mention", "count", "head", "accuracy", *mentions.baselines, "BERT-base"), *rows])
    baselines = ", ".join(f"{name} {fraction:.2f}" for name, fraction in ANTECEDENT_BASELINES.items())
    print(f"\nBERT-base: the paper's head 5-4 on CoNLL-2012 (section 4.3); baselines there: {baselines}")


if __name__ == "__main__":
    raise SystemExit(run(main))
