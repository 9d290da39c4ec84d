"""The record of regression and several labels: scores of Manyheads next to those of transformers' Trainer."""

import json
from statistics import mean, stdev

import pytest

from tests.paths import ROOT

RUNS = json.loads((ROOT / "lab" / "results" / "targets.json").read_text(encoding="utf-8"))["runs"]

NOTE = (ROOT / "lab" / "notes" / "results.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("target", ["regression", "multi-label"])
def test_scores_are_not_worse_and_are_those_of_the_note(target: str) -> None:
    ours, theirs = (
        [run["scores"] for run in RUNS if (run["target"], run["trained_by"]) == (target, library)]
        for library in ("manyheads", "transformers")
    )
    assert len(ours) == len(theirs) == 3
    for metric in ours[0]:
        a, b = ([scores[metric] for scores in runs] for runs in (ours, theirs))
        better = 1 if metric != "mse" else -1
        assert better * (mean(b) - mean(a)) <= 2 * max(stdev(a), stdev(b)), metric
        for scores in (a, b):
            assert f"{mean(scores):.3f} ({stdev(scores):.3f})" in NOTE, metric


def test_both_libraries_score_a_directory_alike() -> None:
    assert max(run["max_difference_between_scorers"] for run in RUNS) < 1e-5
