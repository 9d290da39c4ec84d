"""The corpus report counts what a brute-force reader would count."""

import json
import time

from manyheads.data.parallel import Pairs
from manyheads.data.report import corpus_report

TRAIN = Pairs(
    ["a b c", "a b c", "a b c", "same", "long long"] + [f"word {i}" for i in range(95)],
    ["x y z", "x y z", "other", "same", "w " * 200] + [f"Wort {i}" for i in range(95)],
    skips={"f: blank": 2},
)


def test_counts() -> None:
    report = corpus_report(TRAIN, Pairs(["a b c", "new"], ["else", "neu"]), Pairs(["word 3", "n"], ["Wort 3", "m"]))
    train = report.splits["train"]
    assert (train.pairs, train.skipped, train.copied, train.ratio_outliers) == (100, 2, 1, 1)
    assert (train.duplicate_pairs, train.duplicate_sources) == (1, 2)
    assert train.lengths["source words"].longest == 3
    assert train.lengths["target characters"].longest == 400
    assert report.splits["validation"].overlap_sources == 1
    assert report.splits["validation"].overlap_pairs == 0
    assert report.splits["test"].overlap_pairs == 1
    assert len(report.warnings) == 2
    assert "1 of 2 test sources are in the training data (1 with the same target)" in report.warnings[1]
    assert json.loads(json.dumps(report.as_dict()))["splits"]["train"]["pairs"] == 100
    text = str(report)
    assert "100 (2 skipped)" in text
    assert report.warnings[0] in " ".join(text.split())


def test_tokens_and_alarming_corpora() -> None:
    report = corpus_report(Pairs(["a", "b"], ["a", "b"]), token_lengths=([3, 5], [2, 2]))
    assert report.splits["train"].lengths["source tokens"].mean == 4
    assert report.warnings == ["2 of 2 training pairs are copied verbatim: are the files aligned and in order?"]
    assert corpus_report(Pairs(["a"] * 5, ["b"] * 5)).warnings == ["4 of 5 training pairs repeat an earlier one"]
    assert corpus_report(TRAIN).warnings == []


def test_multi30k_is_fast(multi30k: Pairs) -> None:
    started = time.process_time()
    report = corpus_report(multi30k, multi30k)
    assert time.process_time() - started < 1
    assert report.splits["validation"].overlap_pairs == len(multi30k) == 29_000
