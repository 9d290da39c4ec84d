"""Records and output name data as the user typed them, and find them again from other directories."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from PIL import Image

import manyheads
from manyheads import cli
from manyheads.data.readers.splits import from_here, working_directory

TEXT = ["text-classification", "data=train.csv", "test=test.csv", "steps=2", "vocabulary=100", "threads=1"]
IMAGES = ["image-classification", "data=images", "steps=2", "threads=1", "preset=vit/2-8", "model.layers=1"]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a table of texts and folders of images."""
    home = tmp_path / "typed"
    home.mkdir()
    monkeypatch.chdir(home)
    for split, count in (("train", 60), ("test", 20)):
        rows = [f"a {'good' if i % 2 else 'bad'} day {i},{'pos' if i % 2 else 'neg'}" for i in range(count)]
        Path(f"{split}.csv").write_text("\n".join(["text,label", *rows]) + "\n")
        for number, label in ((i, label) for i in range(count // 2) for label in ("dark", "light")):
            folder = Path("images", split, label)
            folder.mkdir(parents=True, exist_ok=True)
            Image.frombytes("L", (8, 8), random.Random(f"{split}{number}{label}").randbytes(64)).save(
                folder / f"{number}.png"
            )
    return home


def test_no_file_and_no_output_has_an_absolute_path(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for recipe, kind in ((TEXT, "text"), (IMAGES, "images")):
        for name in "ab":
            assert cli.main(["train", *recipe, f"training.seed={ord(name)}", "--out", f"runs/{kind}-{name}"]) == 0
        data = "images/test" if kind == "images" else "test.csv"
        for arguments in (
            ["evaluate", f"runs/{kind}-a", "--errors", f"{kind}.csv"],
            ["evaluate", f"runs/{kind}-a", "--data", data, "--errors", f"{kind}.jsonl", "--json"],
            ["compare", f"runs/{kind}-a", f"runs/{kind}-b"],
            ["compare", f"runs/{kind}-a", f"runs/{kind}-b", "--data", data, "--json"],
        ):
            assert cli.main(arguments) == 0
    assert cli.main(["runs", "runs"]) == 0
    texts = {file: file.read_text(errors="replace") for file in home.rglob("*") if file.is_file()}
    texts |= {Path(name): text for name, text in zip(("stdout", "stderr"), capfd.readouterr(), strict=True)}
    assert [file for file, text in texts.items() if str(home) in text or str(Path.cwd()) in text] == []
    assert json.loads(Path("runs/text-a/result.json").read_text())["data"]["test"] == "test.csv"


def test_data_are_found_from_another_directory_and_after_a_move(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cli.main(["train", *TEXT, "--out", "runs/a"]) == 0
    expected = manyheads.load("runs/a").evaluate().metrics
    elsewhere = home.parent / "elsewhere" / "deeper"
    elsewhere.mkdir(parents=True)
    Path("runs").rename(elsewhere / "moved")  # The path in the record now leads to no file, but the data are here.
    assert manyheads.load("../elsewhere/deeper/moved/a").evaluate().metrics == expected
    (elsewhere / "moved").rename("runs")
    monkeypatch.chdir(elsewhere)
    assert manyheads.load("../../typed/runs/a").evaluate().metrics == expected
    assert cli.main(["train", "--resume", "../../typed/runs/a", "training.steps=3"]) == 0
    monkeypatch.chdir(home)
    assert manyheads.load("runs/a").evaluate().metrics.keys() == expected.keys()


def test_paths_of_a_record_become_valid_here(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Path("runs/a")
    run.mkdir(parents=True)
    directory = working_directory(run)
    assert directory == "../.."
    assert from_here("train.csv", run, directory) == "train.csv"
    run = run.absolute()
    Path("runs/link").symlink_to(run)
    link = Path("runs/link").absolute()
    monkeypatch.chdir(home.parent)
    for name, expected in {
        "train.csv": "typed/train.csv", "./train.csv,test.csv": "typed/train.csv,typed/test.csv", "trai": "typed/trai",
        "hub:a/b": "hub:a/b", "absent.csv": "absent.csv", f"{home}/train.csv": f"{home}/train.csv",
    }.items():  # fmt: skip
        assert from_here(name, run, directory) == expected
        assert from_here(name, link, directory) == expected
