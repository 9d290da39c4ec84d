"""`manyheads probe`: the table, the JSON file, the picture, skipped items, and errors."""

import json
from pathlib import Path

import numpy as np
import pytest

from manyheads import cli
from manyheads.cli.probe import MINIMUM
from manyheads.tasks.heads import probing
from tests.support.treebank import BANK, save_bert, sentence


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_bert(tmp_path_factory.mktemp("model") / "bert")


def probe(model: Path, bank: Path, *more: str) -> int:
    return cli.main(["probe", str(model), "--treebank", str(bank), *more])


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_table_picture_and_parsers_are_written(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bank, out = write(tmp_path / "a.conllu", "# newdoc\n" + BANK), tmp_path / "heat.svg"
    assert probe(model, bank, "--minimum", "3", "--train", str(bank)) == 0
    assert len(capsys.readouterr().out.splitlines()) <= 40
    assert probe(model, bank, "--minimum", "3", "--out", str(out), "--train", str(bank), "--all") == 0
    shown = capsys.readouterr().out
    assert "2 layers of 2 heads, counted from 0" in shown
    rows = {line.split()[0]: line.split() for line in reversed(shown.splitlines()) if line.strip()}  # the first of each
    assert rows["all"][1] == "9"
    assert {"det", "nsubj", "obj"} <= set(rows)
    assert "antecedents" in shown
    assert rows["nominal"][1].isdigit()
    assert rows["distances"][1:3] == ["+", "words"]
    assert out.read_text().startswith("<?xml")


def test_treebanks_are_read_before_the_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert probe(tmp_path / "none", tmp_path / "none.conllu") == 2
    assert "none.conllu: no such file" in capsys.readouterr().err
    bank = write(tmp_path / "a.conllu", BANK)
    assert probe(tmp_path / "none", bank, "--train", str(tmp_path / "other.conllu")) == 2
    assert "other.conllu: no such file" in capsys.readouterr().err


def test_json_is_complete(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bank = write(tmp_path / "a.conllu", BANK)
    assert probe(model, bank, "--json", "--minimum", "1") == 0
    report = json.loads(capsys.readouterr().out)
    assert [row["group"] for row in report["relations"]] == ["all", "det", "nsubj", "obj"]
    assert report["relations"][1]["baselines"]["+1"] == 1.0
    assert len(report["heads"]) == 4
    assert 0 <= report["heads"][0]["special"]["[CLS]"] <= 1
    assert report["counts"]["sentences"] == 3


def test_omissions_are_reported(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    long = sentence(*((w, i, "dep") for i, w in enumerate(["dog"] * 9)))
    dropped = sentence(("the", 2, "det"), ("dog", 0, "root"), ("\x07", 2, "punct"))
    bank = write(tmp_path / "a.conllu", BANK + long + dropped + "1\tbroken\n")
    assert probe(model, bank) == 2
    error = capsys.readouterr().err
    assert f"{bank}:30: expected 10 columns, found 2" in error
    assert len(error.splitlines()) == 1
    assert probe(model, bank, "--skip-bad-lines") == 0
    error = capsys.readouterr().err
    for line in ("1 malformed sentences skipped", "1 sentences left out: longer than the",
                 "1 words left out: the tokenizer gives them", "3 relations with fewer than 50 words"):  # fmt: skip
        assert line in error


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--out", "a.gif"), "a name that ends in .png, .svg or .pdf"),
        (("--out", "none/a.png"), "directory none not found: create it first"),
        (("--minimum", "0"), "expected a whole number from 1"),
        (("--train", "none.conllu"), "none.conllu: no such file"),
    ],
)
def test_bad_input_is_reported(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: tuple[str, ...], message: str
) -> None:
    assert probe(model, write(tmp_path / "a.conllu", BANK), *more) == 2
    assert message in capsys.readouterr().err


def test_without_a_treebank_heads_are_detected(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["probe", str(model), "--out", str(tmp_path / "heads.npz")]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert {(row[-4], row[-2]) for row in rows if row[0] == "induction"} == {
        ("0", "0"),
        ("0", "1"),
        ("1", "0"),
        ("1", "1"),
    }
    with np.load(tmp_path / "heads.npz") as arrays:
        assert arrays["previous_token"].shape == (2, 2)
        assert arrays["previous_token.columns"].tolist() == ["head 0", "head 1"]
    assert cli.main(["probe", str(model), "--json", "--out", str(tmp_path / "heads.png")]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [panel["title"] for panel in report["maps"]] == ["induction", "previous token", "duplicate token"]
    assert (tmp_path / "heads.png").stat().st_size > 5000


def test_a_missing_treebank_and_minimum_are_reported(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["probe", str(model), "--train", str(tmp_path / "none.conllu")]) == 2
    assert "--treebank" in capsys.readouterr().err
    assert probe(model, tmp_path / "none.conllu") == 2
    assert "no such file; give one treebank file" in capsys.readouterr().err
    assert MINIMUM == probing.MINIMUM
