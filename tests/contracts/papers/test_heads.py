"""Accuracies of heads next to the published ones: the table, the notes and the JSON document."""

import json
from pathlib import Path

import pytest

from papers.command import run
from papers.heads.__main__ import main
from tests.support.treebank import BANK, save_bert, sentence

TREEBANK = "# newdoc\n" + BANK


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_bert(tmp_path_factory.mktemp("model") / "bert")


def compare(model: Path, folder: Path, text: str, *more: str) -> int:
    (folder / "a.conllu").write_text(text)
    return run(main, [str(model), "--treebank", str(folder / "a.conllu"), "--minimum", "1", *more])


def test_relations_are_printed_next_to_the_published_ones(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare(model, tmp_path, TREEBANK, "--json") == 0
    record = json.loads(capsys.readouterr().out)
    assert [row["group"] for row in record["relations"]] == ["all", "det", "nsubj", "obj"]
    assert [row["group"] for row in record["published_relations"]] == ["all", "det", "nsubj", "dobj"]
    assert record["published_relations"][1]["published"]["accuracy"] == 0.943
    found, same = record["published_relations"][3], record["relations"][3]
    assert found["accuracy"] == same["accuracy"]
    assert compare(model, tmp_path, TREEBANK) == 0
    shown = capsys.readouterr().out
    rows = {line.split()[0]: line.split() for line in reversed(shown.splitlines()) if line.strip()}
    assert rows["dobj"][2] == f"{same['layer'] + 1}-{same['head'] + 1}"
    assert rows["dobj"][-4:] == ["8-10", "0.868", "0.400", "(-2)"]
    assert rows["nominal"][-1] == "0.580"
    assert "head 5-4" in shown


def test_the_papers_wrong_row_has_a_note(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    passive = sentence(("dog", 3, "nsubj:pass"), ("the", 3, "aux:pass"), ("sees", 0, "root"))
    assert compare(model, tmp_path, passive) == 0
    assert "  auxpass: the authors' notebook prints 0.941, offset 0.825" in capsys.readouterr().out
    assert compare(model, tmp_path, TREEBANK) == 0
    assert "auxpass" not in capsys.readouterr().out
