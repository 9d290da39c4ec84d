"""Errors of an evaluation as rows of the user's table."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pandas as pd
import pytest

import manyheads
from manyheads import cli
from manyheads.errors import UserError
from tests.support import services
from tests.support.refusals import refused

TEXTS = ["the cat sat", "the dog", "on the mat", "the café, naïve"]
NOTES = ['a, "b"\nc', "", "x\ty", "z"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, labels = tmp_path_factory.mktemp("runs"), ("negative", "positive")
    services.bert(folder / "classifier", head="sequence", labels=labels)
    services.bert(folder / "several", head="sequence", labels=labels, target="multi-label")
    return folder


def read(path: Path) -> pd.DataFrame:
    if path.suffix == ".parquet":
        return pd.read_parquet(path)
    return pd.read_json(path, lines=True) if path.suffix == ".jsonl" else pd.read_csv(path, keep_default_na=False)


def test_errors_of_an_evaluation_are_rows_of_the_table(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, model = tmp_path / "t.csv", manyheads.load(runs / "classifier")
    found = [labels[0].label for labels in model.classify(TEXTS)]
    other = {"negative": "positive", "positive": "negative"}
    labels = [found[0], other[found[1]], found[2], other[found[3]]]
    pd.DataFrame({"id": [7, 3, 9, 5], "text": TEXTS, "label": labels, "note": NOTES}).to_csv(path, index=False)
    command = ["evaluate", str(runs / "classifier"), "--data", str(path), "--errors"]
    for suffix in ("csv", "jsonl", "parquet"):
        assert cli.main([*command, str(tmp_path / f"e.{suffix}")]) == 0
        errors = read(tmp_path / f"e.{suffix}")
        columns = ["row", "id", "text", "label", "note", "truth", "prediction", "probability", "truth_probability"]
        assert list(errors) == columns
        assert dict(zip(errors.row, errors.id.astype(int), strict=True)) == {2: 3, 4: 5}
        assert (errors.truth == errors.label).all()
        assert errors.probability.to_numpy() + errors.truth_probability.to_numpy() == pytest.approx(1, abs=2e-4)
        assert str(tmp_path) not in (tmp_path / f"e.{suffix}").read_bytes().decode(errors="replace")
    pd.DataFrame({"text": TEXTS, "label": labels, "truth": NOTES}).to_csv(path, index=False)
    capsys.readouterr()
    assert cli.main([*command, str(tmp_path / "q.csv")]) == 2
    shown = capsys.readouterr()
    assert "already has the column 'truth'" in shown.err
    assert "accuracy" in shown.out
    assert "expected a name in .tsv, .csv" in refused(capsys, *command, str(tmp_path / "q.xlsx"))
    for label in ("negative", "positive"):
        (tmp_path / "folders" / label).mkdir(parents=True)
        (tmp_path / "folders" / label / "a.txt").write_text("the cat sat")
    model.outcome(tmp_path / "folders").save_errors(tmp_path / "f.csv")
    assert read(tmp_path / "f.csv").file.tolist() == [f"{other[found[0]]}/a.txt"]
    model.outcome([("the cat sat", other[found[0]])]).save_errors(tmp_path / "m.csv")
    assert read(tmp_path / "m.csv")[["row", "input"]].values.tolist() == [[1, "the cat sat"]]


def test_errors_without_a_label_say_so(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("text,label\nthe cat,negative|positive\n")
    model = manyheads.load(runs / "several")
    model.target = dataclasses.replace(model.target, threshold=1.0)
    model.outcome(tmp_path / "t.csv").save_errors(tmp_path / "e.csv")
    (row,) = read(tmp_path / "e.csv").to_dict("records")
    assert (row["truth"], row["prediction"]) == ("negative|positive", "no label")
    assert row["probability"].startswith("negative 0.")


def test_evaluated_data_are_never_replaced(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    data = tmp_path / "t.csv"
    data.write_text("text,label\nthe cat,positive\nthe dog,negative\n")
    before = data.read_text()
    (tmp_path / "link.csv").symlink_to(data)
    for out in ("t.csv", "link.csv"):
        assert "is an input" in refused(
            capsys, "evaluate", str(runs / "classifier"), "--data", str(data), "--errors", out
        )
    outcome = manyheads.load(runs / "classifier").outcome(data)
    with pytest.raises(UserError, match="this file has evaluated data"):
        outcome.save_errors("link.csv")
    (tmp_path / "other.csv").write_text("mine")
    command = ("evaluate", str(runs / "classifier"), "--data", str(data), "--errors", "other.csv")
    assert "the file exists: give another name, or pass --overwrite" in refused(capsys, *command)
    assert cli.main([*command, "--overwrite"]) == 0
    (tmp_path / "folder").mkdir()
    data.rename(tmp_path / "folder" / "test.csv")
    with pytest.raises(UserError, match="this file has evaluated data"):
        manyheads.load(runs / "classifier").outcome(tmp_path / "folder").save_errors("folder/test.csv")
    assert (tmp_path / "folder" / "test.csv").read_text() == before
