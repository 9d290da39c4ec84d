"""`make weights` with random weights: small ones here, and those of the published sizes in tests/system."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lab import results_table, weights
from papers.command import run
from papers.heads.published import PUBLISHED
from tests.support.random_weights import write_data, write_models


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("weights")
    return {**write_models(folder, tiny=True), **write_data(folder, classes=2)}


@pytest.fixture(autouse=True)
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(weights, "RECORD", tmp_path / "weights.json")
    monkeypatch.setattr(weights, "RUNS", tmp_path / "runs")
    return tmp_path / "weights.json"


def measured(record: Path) -> dict[str, Any]:
    return {name: row["measured"] for name, row in json.loads(record.read_text()).items()}


def test_each_row_is_measured(given: dict[str, str], record: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights.main([f"{key}={path}" for key, path in given.items()])
    found = measured(record)
    assert list(found) == list(weights.ROWS)
    assert found["gpt2-sentence"].startswith('"Studying Deep-Learning is')
    assert [part.split()[0] for part in found["bert-heads"].split(", ")] == ["det", "dobj", "poss", "auxpass", "pobj"]
    assert found["bert-antecedents"].endswith("% of 2")
    assert found["vit-imagenet"].endswith("of 2")
    assert "published: accuracy 93.5%" in capsys.readouterr().out
    assert "not measured" not in weights.published_table()
    assert given["GPT2"] not in record.read_text()  # no path of this machine


def test_a_head_is_counted_from_one_and_has_its_better_direction() -> None:
    accuracies = np.zeros((2, 12, 12))
    accuracies[1, 7, 10], accuracies[0, 7, 10], accuracies[0, 10, 7] = 0.943, 0.2, 1.0
    assert weights._accuracy(accuracies, weights.HEADS[0]) == "94.3%"
    assert [PUBLISHED[h.relation][:3] for h in weights.HEADS] == [(h.layer, h.head, h.published) for h in weights.HEADS]


def test_the_folders_of_imagenet_are_the_labels_in_order(given: dict[str, str]) -> None:
    images = weights.imagenet(given["IMAGENET"], ("cat", "dog"))
    assert [item.label for item in images.items] == ["cat", "dog"]
    with pytest.raises(ValueError, match="expected a folder for each of 3 classes, found 2"):
        weights.imagenet(given["IMAGENET"], ("cat", "dog", "fox"))


def test_a_later_measurement_keeps_the_others(given: dict[str, str], record: Path) -> None:
    weights.main([f"GPT2={given['GPT2']}"])
    weights.main([f"{key}={given[key]}" for key in ("VIT", "IMAGENET")])
    assert list(measured(record)) == ["gpt2-sentence", "gpt2-translation", "gpt2-answer", "vit-imagenet"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["GPT2=nowhere"], "GPT2=nowhere: no such file or directory; expected a directory of openai-community/gpt2"),
        (["GPT=x"], "GPT=x: expected KEY=PATH, with one of the keys GPT2, BERT"),
        (["GPT2"], "GPT2: expected KEY=PATH"),
        (["GPT2={BERT}"], "expected the model type 'gpt2', found 'bert'"),
        (["DEIT={VIT}"], "expected the model type 'deit', found 'vit'"),
        (["VIT={DEIT}"], "expected the model type 'vit', found 'deit'"),
        (["BERT={SST2}"], "config.json"),
    ],
)
def test_unknown_directories_are_one_clear_line(
    given: dict[str, str], record: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert run(weights.main, [word.format(**given) for word in words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert not record.exists()


def test_without_arguments_it_lists_what_each_row_needs(capsys: pytest.CaptureFixture[str]) -> None:
    weights.main([])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + len(weights.ROWS)
    assert "docs/measured/published-weights.md" in results_table.PAGES
    assert weights.published_table().count("not measured") == len(weights.ROWS)
