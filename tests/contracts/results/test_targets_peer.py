"""The record of regression and several labels: Manyheads and transformers' Trainer score alike, within noise."""

import json
from statistics import mean, stdev

import pytest

from tests.paths import ROOT

RUNS = json.loads((ROOT / "lab" / "results" / "targets.json").read_text(encoding="utf-8"))["runs"]


@pytest.mark.parametrize("target", ["regression", "multi-label"])
def test_scores_are_equal_within_noise(target: str) -> None:
    ours, theirs = (
        [run["scores"] for run in RUNS if (run["target"], run["trained_by"]) == (target, library)]
        for library in ("manyheads", "transformers")
    )
    assert len(ours) == len(theirs) == 3
    for metric in ours[0]:
        a, b = ([scores[metric] for scores in runs] for runs in (ours, theirs))
        assert abs(mean(a) - mean(b)) <= 2 * max(stdev(a), stdev(b)), metric


def test_both_libraries_score_a_directory_alike() -> None:
    assert max(run["max_difference_between_scorers"] for run in RUNS) < 1e-5
