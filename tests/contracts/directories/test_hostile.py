"""Directories of unknown origin: sizes are checked before use, and file names cannot point outside the directory."""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models
from torch import nn

from manyheads import directory
from manyheads.data.sources.recorded import recorded_data
from manyheads.files import read_json
from manyheads.interop.tokenizer import read_tokenizers
from manyheads.interop.tutorial import read_vocabulary
from manyheads.interop.vocabularies import foreign_tokenizers
from manyheads.interop.weights import read_shapes
from manyheads.models.text_classifier import TextClassifier, TextClassifierConfig
from manyheads.models.vit import ViT, ViTConfig
from manyheads.tasks.loading import load
from manyheads.training.checkpoints import Checkpoints
from manyheads.training.run_log import read_metrics
from manyheads.training.state import Counters, capture, restore

SPLIT = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
REPLACE = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 100}
TEMPLATE = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "y", "type_id": 0}}], "pair": [],
            "special_tokens": {}}  # fmt: skip
WORDS = {"type": "WordPiece", "unk_token": "x", "continuing_subword_prefix": "", "max_input_chars_per_word": 10**9,
         "vocab": {"a": 0, "x": 1}}  # fmt: skip


@pytest.mark.parametrize(
    ("part", "fault"),
    [
        ({"pre_tokenizer": SPLIT}, "failed to encode the text 'aaa'"),
        ({"normalizer": {"type": "Sequence", "normalizers": [REPLACE] * 2}}, "lengthens texts up to 10,000 times"),
        ({"normalizer": {"type": "Prepend", "prepend": "b" * 10**6}}, "lengthens texts up to 1,000,000 times"),
        ({"post_processor": TEMPLATE}, "failed to encode the text"),
        ({"model": WORDS}, "'max_input_chars_per_word' of at most 1,000, found 1,000,000,000"),
        (
            {"model": {**WORDS, "max_input_chars_per_word": 10, "vocab": {"a": 0}}},
            "failed to encode .*token from the vocab",
        ),
        ({"model": {"type": "WordLevel", "unk_token": "x", "vocab": {"a": 0}}}, "failed to encode .*token"),
        ({"model": {"type": "BPE", "unk_token": "x", "vocab": {"a": 0}, "merges": []}}, "Unk token `x` not found"),
        ({"model": {"type": "Unigram", "unk_id": None, "vocab": [["a", -1.0]]}}, "`unk_id` is missing"),
    ],
)
def test_a_harmful_tokenizer_is_refused(tmp_path: Path, part: dict[str, Any], fault: str) -> None:
    content = json.loads(Tokenizer(models.WordLevel({"a": 0, "x": 1}, unk_token="x")).to_str())
    (tmp_path / "tokenizer.json").write_text(json.dumps({**content, **part}))
    with pytest.raises(ValueError, match=fault):
        read_tokenizers(tmp_path, "gpt2", ["tokenizer.json"], None, None, (10, 10))


def test_pegasus_offsets_its_pieces(tmp_path: Path) -> None:
    (tmp_path / "spiece.model").write_bytes(b"")
    with pytest.raises(ValueError, match="'offset' is 1000000000; expected 0 to 10,000"):
        foreign_tokenizers(tmp_path, "pegasus", {"offset": 10**9})


def test_generated_position_tables_are_checked_before_allocation(tmp_path: Path) -> None:
    config = TextClassifierConfig(vocab=20, width=128, heads=1, head_width=4, feed_forward=4, positions="concatenated")
    directory.save(tmp_path, TextClassifier(config))
    settings = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**settings, "max_positions": 1_000_000}))
    with pytest.raises(ValueError, match="expected at most 67,108,864 values in computed tables, .* found 128,000,000"):
        directory.load(tmp_path)


def test_oversized_images_are_refused(tmp_path: Path) -> None:
    sizes: Any = {"width": 8, "heads": 2, "layers": 1, "feed_forward": 8, "image_size": 8, "patch": 2, "channels": 1}
    directory.save(tmp_path, ViT(ViTConfig(labels=("a", "b"), **sizes)))
    processor = {"size": {"height": 4000, "width": 4000}, "image_mean": [0.5], "image_std": [0.5]}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(processor))
    with pytest.raises(ValueError, match="its images have 4,000 x 4,000 pixels: expected .* 65,536 patches"):
        load(tmp_path)


def test_endlessly_nested_shards_and_empty_shapes_are_refused(tmp_path: Path) -> None:
    directory.save(tmp_path, TextClassifier(TextClassifierConfig(vocab=20, width=8, head_width=4, feed_forward=4)))
    tensors = load_file(tmp_path / "model.safetensors")
    save_file({**tensors, "empty": torch.zeros(0, 2**40)}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="unexpected: empty"):
        directory.load(tmp_path)
    header = json.dumps(
        {"empty": {"dtype": "F32", "shape": [2**31, 2**31, 0, 2**31, 2**31], "data_offsets": [0, 0]}}
    ).encode()
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(ValueError, match="damaged .Stride calculation overflowed"):
        read_shapes(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "model.safetensors.index.json").write_text("[" * 100_000)
    with pytest.raises(ValueError, match="expected a 'weight_map'"):
        directory.load(tmp_path)
    (tmp_path / "model.safetensors.index.json").unlink()
    (tmp_path / "model.safetensors.index.json").symlink_to("/dev/zero")
    with pytest.raises(ValueError, match="expected a 'weight_map'"):
        read_shapes(tmp_path)


def test_a_json_device_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "command.json").symlink_to("/dev/zero")
    with pytest.raises(ValueError, match=r"command\.json: expected a file, found a pipe or device"):
        read_json(tmp_path / "command.json", "delete it")


@pytest.mark.parametrize(
    ("kind", "values", "fault"),
    [
        ("tagged", {"locale": 3}, "locale is 3: expected a name"),
        ("images", {"sample": 1e-300}, "sample is 1e-300: expected an integer or none"),
        (
            "images",
            {"columns": {"image": None, "label": {"a": None}}},
            "label is {'a': None}: expected a name or a list or none",
        ),
    ],
)
def test_a_record_with_wrong_types_is_damaged(kind: str, values: dict[str, Any], fault: str) -> None:
    with pytest.raises(ValueError, match=f"result.json is damaged .*{re.escape(fault)}"):
        recorded_data({"data": {"kind": kind, **values}})


def run(folder: Path) -> tuple[nn.Module, Any]:
    """Write a checkpoint of step 4, and return its model and optimizer."""
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters())
    with Checkpoints(folder) as checkpoints:
        checkpoints.save(4, *capture(model, optimizer, Counters(step=4), {}), [])
        checkpoints.wait()
    return model, optimizer


def rewrite(folder: Path, **changes: Any) -> None:
    """Replace the content of the checkpoint and update its checksum."""
    file = folder / "checkpoint-00000004.json"
    content = {**json.loads(file.read_text())["content"], **changes}
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    file.write_text(json.dumps({"sha256": digest, "content": content}))


@pytest.mark.parametrize(
    "changes",
    [
        {"files": {"../secret": "0" * 64}},
        {"files": {}},
        {"files": ["checkpoint-00000004.safetensors"]},
        {"step": "4"},
        {"step": None},
    ],
)
def test_a_checkpoint_opens_no_file_outside_its_directory(
    tmp_path: Path, changes: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "secret").write_text("hidden")
    run(tmp_path / "state")
    rewrite(tmp_path / "state", **changes)
    with Checkpoints(tmp_path / "state") as checkpoints, pytest.raises(ValueError, match="no usable checkpoint"):
        checkpoints.latest()
    assert hashlib.sha256(b"hidden").hexdigest() not in capsys.readouterr().out


def test_a_checkpoint_that_is_a_pipe_does_not_block(tmp_path: Path) -> None:
    run(tmp_path)
    (tmp_path / "checkpoint-00000004.safetensors").unlink()
    os.mkfifo(tmp_path / "checkpoint-00000004.safetensors")
    with Checkpoints(tmp_path) as checkpoints, pytest.raises(ValueError, match="no usable checkpoint"):
        checkpoints.latest()


@pytest.mark.parametrize(
    "changes",
    [
        {"rng": None}, {"rng": {"python": [3, None], "numpy": []}}, {"counters": {"steps": 4}},
        {"counters": {"step": "4"}}, {"counters": {"best": {"value": 1.0, "file": "../secret"}}},
        {"counters": {"snapshots": [{"step": 1}]}}, {"counters": {"window_loss": "1"}},
        {"counters": {"best": {"value": 1.0, "step": 1, "file": "x", "metrics": [1.0]}}},
    ],
)  # fmt: skip
def test_missing_parts_of_a_checkpoint_are_reported_in_one_line(tmp_path: Path, changes: dict[str, Any]) -> None:
    model, optimizer = run(tmp_path)
    rewrite(tmp_path, **changes)
    with Checkpoints(tmp_path) as checkpoints:
        last = checkpoints.latest()
    assert last is not None
    with pytest.raises(ValueError, match="the checkpoint is damaged or from another version"):
        restore(model, optimizer, {}, last[1], last[0])


@pytest.mark.parametrize(
    "counters",
    [{"best": {"value": 1.0, "step": 1, "file": "../secret"}}, {"snapshots": [{"step": 1, "file": "/etc/passwd"}]}],
)
def test_unneeded_weights_are_not_read(tmp_path: Path, counters: dict[str, Any]) -> None:
    model, optimizer = run(tmp_path)
    rewrite(tmp_path, counters=counters)
    with Checkpoints(tmp_path) as checkpoints:
        last = checkpoints.latest()
    assert last is not None
    restored = restore(model, optimizer, {}, last[1], last[0])
    assert len(restored.forget_lost(last[0]["files"])) == 1
    assert restored.needed_files() == []


def test_metrics_lines_with_invalid_numbers_are_skipped(tmp_path: Path) -> None:
    lines = ['{"step": 1}', '{"step": ' + "9" * 5000 + "}", "[" * 100_000, '{"step": 2}']
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
    assert [entry["step"] for entry in read_metrics(tmp_path / "metrics.jsonl")] == [1, 2]


def test_a_vocabulary_from_a_device_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").symlink_to("/dev/zero")
    with pytest.raises(ValueError, match="expected a file, found a pipe or device"):
        read_vocabulary(tmp_path / "vocab.txt")
