"""Training on a directory with unusual split names, from reading the files to scoring."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from manyheads import cli
from manyheads.directory import load

LANGUAGE = ["tokenizer=character", "block=24", "rows=2", "model.width=8", "model.layers=1", "model.heads=1",
            "threads=1", "training.steps=2", "training.warmup=1"]  # fmt: skip


def trained(capsys: pytest.CaptureFixture[str], out: Path, *words: str) -> tuple[dict[str, Any], str]:
    assert cli.main(["train", *words, "--out", str(out)]) == 0
    told = capsys.readouterr().err
    assert len(told.splitlines()) < 40, "more than a screen"
    return json.loads((out / "result.json").read_text()), told


def test_image_folders_named_training_and_testing_are_splits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(16):
        split, label = ("Training", "Testing")[number % 2], ("glioma", "notumor")[number // 2 % 2]
        (tmp_path / "data" / split / label).mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 255, (12, 12, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "data" / split / label / f"{number}.png")
    settings = ["preset=vit/2-8", "model.channels=3", "model.image_size=12", "training.epochs=1", "threads=1"]
    result, told = trained(
        capsys, tmp_path / "run", "image-classification", f"data={tmp_path / 'data'}", *settings, "--max-minutes", "0.2"
    )
    assert f"{tmp_path / 'data'}: train = Training; test = Testing\n" in told
    assert load(tmp_path / "run").model.config.labels == ("glioma", "notumor")
    assert result["data"]["items"]["test"] == 8


def test_texts_named_as_in_wikitext(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "data").mkdir()
    for split, alphabet in (("train", "abcdef"), ("valid", "abcde"), ("test", "abcd")):
        (tmp_path / "data" / f"wiki.{split}.tokens").write_text(f"{alphabet}\n" * 40)
    result, told = trained(capsys, tmp_path / "run", "language-modeling", f"data={tmp_path / 'data'}", *LANGUAGE)
    assert "train = wiki.train.tokens; validation = wiki.valid.tokens; test = wiki.test.tokens\n" in told
    assert "281 training tokens, 241 validation tokens" in told
    assert [Path(result["data"][name]).name for name in ("data", "validation", "test")] == [
        "wiki.train.tokens", "wiki.valid.tokens", "wiki.test.tokens",
    ]  # fmt: skip


def test_a_large_and_a_small_text_are_both_split(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The end of the large one is held out; and a run that is resumed or scored later finds it again."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "big.txt").write_text("".join(f"the line is {n:07}\n" for n in range(1000)))
    (tmp_path / "data" / "small.txt").write_text("a small text of 43 chars\nin only two lines")
    words = ["language-modeling", f"data={tmp_path / 'data'}", *LANGUAGE]
    _, told = trained(capsys, tmp_path / "run", *words)
    assert "train = big.txt, small.txt\n" in told
    assert "held out the end of the longest text of the training data, 5.0% of the characters" in told
    assert "19,041 training tokens, 1,004 validation tokens" in told
    assert cli.main(["train", *words, "--out", str(tmp_path / "run"), "--resume"]) == 0
    assert "this run is finished" in capsys.readouterr().err
