"""Paired bootstrap of translators: `python -m lab.rivals_compare COMPARISON ROW=RUN ROW=RUN ...`.

COMPARISON is one of `rivals_page.COMPARISONS`, such as fr. Every run translates the test data of its training, which
must be equal. For each row, the record `rivals/differences-COMPARISON.json` gets the lead of the Transformer in
`bleu_moses_lc` and its 95% interval over 1,000 resamples of the sentences (Koehn 2004). A row with several runs, which
differ in their seeds, counts with the mean of their scores.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sacrebleu.metrics import BLEU

from lab.records import RESULTS
from lab.rivals_page import COMPARISONS, differences
from manyheads.files import write_json
from manyheads.tasks.loading import load
from manyheads.tasks.translation.metrics import prepared_texts

RESAMPLES = 1000
BASE = "transformer"


def main(arguments: list[str]) -> int:
    comparison, *pairs = arguments
    language = COMPARISONS[comparison][0]
    counts: dict[str, list[NDArray[np.int64]]] = {}
    references: list[Any] = []
    for pair in pairs:
        row, _, run = pair.partition("=")
        outcome = load(run).outcome()
        references.append(outcome.references)
        assert references[-1] == references[0], f"{run} has other test data than {pairs[0]}"
        counts.setdefault(row, []).append(sentence_counts(outcome, language))
    record = RESULTS / "rivals" / f"differences-{comparison}.json"
    rows = {row: difference(counts[BASE], runs) | {"runs": len(runs)} for row, runs in counts.items() if row != BASE}
    record.parent.mkdir(parents=True, exist_ok=True)
    write_json(record, {"metric": "bleu_moses_lc", "resamples": RESAMPLES, "rows": differences(comparison) | rows})
    for row, found in rows.items():
        print(row, found)
    return 0


def sentence_counts(outcome: Any, language: str) -> NDArray[np.int64]:
    """Return the matching and all n-grams of each sentence, and both lengths, (N, 10)."""
    bleu = BLEU(tokenize="none", force=True, effective_order=True)
    texts, references = (prepared_texts(lines, language) for lines in (outcome.outputs, outcome.references))
    scores = [bleu.sentence_score(text, [reference]) for text, reference in zip(texts, references, strict=True)]
    return np.array([[*score.counts, *score.totals, score.sys_len, score.ref_len] for score in scores])


def corpus_bleu(counts: NDArray[np.int64]) -> float:
    """Return BLEU of a corpus from its summed counts, (10,)."""
    found = counts.tolist()
    return float(BLEU.compute_bleu(found[:4], found[4:8], found[8], found[9]).score)


def difference(base: list[NDArray[np.int64]], rival: list[NDArray[np.int64]]) -> dict[str, Any]:
    """Return by how much the mean BLEU of `base` exceeds that of `rival`, with a 95% interval."""
    random, sentences = np.random.default_rng(1), len(base[0])

    def lead(rows: NDArray[np.int64]) -> float:
        first, second = (np.mean([corpus_bleu(run[rows].sum(0)) for run in runs]) for runs in (base, rival))
        return float(first - second)

    leads = [lead(random.integers(sentences, size=sentences)) for _ in range(RESAMPLES)]
    low, high = np.percentile(leads, [2.5, 97.5]).tolist()
    return {"difference": round(lead(np.arange(sentences)), 3), "interval": [round(low, 3), round(high, 3)]}


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
