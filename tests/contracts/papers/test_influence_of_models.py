"""The command that measures influence over distance, for its own networks and for trained models."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer

from manyheads import directory
from manyheads.data.text.tokenizers import train_byte_bpe
from manyheads.models.bert import Bert, BertConfig
from manyheads.models.bert_features import BertFeatures, BertFeaturesConfig
from manyheads.models.gpt import GPT
from manyheads.models.presets import preset
from manyheads.models.sequence_baselines import SequenceBaseline
from papers.command import run
from papers.reach.__main__ import main
from papers.reach.trained_models import influences

SMALL = ["--length", "6", "--width", "8", "--layers", "1", "--kernel", "3", "--symbols", "2", "--steps", "2"]


def test_the_command_prints_draws_and_records(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(main, ["influence", *SMALL, "--out", str(tmp_path / "r")]) == 0
    assert "attention" in capsys.readouterr().out
    assert (tmp_path / "r" / "influence.png").read_bytes().startswith(b"\x89PNG")
    record = json.loads((tmp_path / "r" / "result.json").read_text())
    assert list(record["metrics"]) == ["recalled_rnn", "recalled_lstm", "recalled_convolution", "recalled_attention"]
    curves = record["by_distance"]["influence, before training"]
    assert [len(curve) for curve in curves.values()] == [6] * 4
    assert curves["convolution"][2:] == [0.0] * 4


@pytest.fixture
def models(tmp_path: Path) -> tuple[Path, Path, Path]:
    torch.manual_seed(1)
    tokenizer = train_byte_bpe(["the dog sees a cat"] * 3, 270)
    size = tokenizer.get_vocab_size()
    lstm = SequenceBaseline(preset("sequence-baseline/lstm", vocab=size, width=8, hidden=8))
    gpt = GPT(preset("gpt2/nano", vocab=size, width=8, heads=2, layers=1))
    directory.save(tmp_path / "lstm", lstm, tokenizer)
    directory.save(tmp_path / "gpt", gpt, tokenizer)
    (tmp_path / "texts").write_text("short\n" + "a cat sees the dog and the dog sees a cat\n" * 3)
    return tmp_path / "lstm", tmp_path / "gpt", tmp_path / "texts"


def test_trained_models_are_inspected(
    models: tuple[Path, Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lstm, gpt, texts = models
    words = ["--models", str(lstm), str(gpt), "--texts", str(texts), "--length", "8", "--out", str(tmp_path / "r")]
    assert run(main, ["influence", *words]) == 0
    assert str(lstm) in capsys.readouterr().out
    fading, looking = (influences(str(path), texts, 8, seed=1) for path in (lstm, gpt))
    assert fading[7] < 0.2 * fading[0]
    assert min(looking) > 0
    one = influences(str(lstm), texts, 8, seed=1)
    assert one == fading


def test_only_the_needed_part_of_a_large_file_is_read(models: tuple[Path, Path, Path]) -> None:
    _, gpt, texts = models
    wanted = "a cat sees the dog and the dog sees a cat\n" * 64
    texts.write_text(wanted)
    influence = influences(str(gpt), texts, 8, seed=1)
    texts.write_bytes((wanted * 100).encode() + b"\xff")  # which is no text
    assert influences(str(gpt), texts, 8, seed=1) == influence


def tokenizer(model: Path) -> Tokenizer:
    return Tokenizer.from_file(str(model / "tokenizer.json"))


def test_mismatches_are_reported(models: tuple[Path, Path, Path], tmp_path: Path) -> None:
    lstm, _, texts = models
    with pytest.raises(ValueError, match="found no text with 60 tokens or more"):
        influences(str(lstm), texts, 60, 1)
    with pytest.raises(ValueError, match="none: found no such file; expected a file with one text per line"):
        influences(str(lstm), tmp_path / "none", 6, 1)
    bert: dict[str, Any] = {"vocab": 280, "width": 8, "layers": 1, "heads": 2, "feed_forward": 8, "labels": ("a", "b")}
    for head in ("pretraining", "question", "choice", "pooler"):
        labels = () if head != "choice" else bert["labels"]
        directory.save(tmp_path / head, Bert(BertConfig(**{**bert, "labels": labels, "head": head})), tokenizer(lstm))
    features = BertFeatures(BertFeaturesConfig(**bert, head="sequence", read=1, hidden=4))
    directory.save(tmp_path / "features", features, tokenizer(lstm))
    for name in ("pretraining", "question", "choice", "pooler", "features"):
        with pytest.raises(ValueError, match=f"{name}: expected a model that reads single texts"):
            influences(str(tmp_path / name), texts, 6, 1)
    with pytest.raises(ValueError, match="expected --models and --texts together"):
        main(["influence", "--texts", str(texts), "--out", str(tmp_path / "r")])
