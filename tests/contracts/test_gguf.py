"""A GGUF file of ours is the same GPT-2, with the same tokenizer, when transformers reads it."""

from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGUFReader
from transformers import AutoModelForCausalLM, AutoTokenizer

from manyheads import directory
from manyheads.data.text.tokenizers import train_byte_bpe, train_character
from manyheads.errors import UserError
from manyheads.export import export
from manyheads.models.presets import build, preset

TEXT = "The quick brown fox jumps over the lazy dog. " * 4


def saved(folder: Path, **settings: Any) -> Any:
    torch.manual_seed(1)
    tokenizer = train_byte_bpe([TEXT], 300)
    sizes = {"vocab": tokenizer.get_vocab_size(), "width": 16, "layers": 2, "heads": 2, "max_positions": 1024}
    model = build(preset("gpt2/nano", **{**sizes, "end": tokenizer.token_to_id("<|endoftext|>"), **settings})).eval()
    directory.save(folder, model, tokenizer)
    return model


def test_transformers_reads_the_same_gpt2(tmp_path: Path) -> None:
    model = saved(tmp_path / "model")
    export(tmp_path / "model", tmp_path / "gguf", "gguf")
    assert [file.name for file in (tmp_path / "gguf").iterdir()] == ["model.gguf"]
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "gguf", gguf_file="model.gguf")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "gguf", gguf_file="model.gguf")
    ids = tokenizer("The lazy fox, über", return_tensors="pt")["input_ids"]
    # transformers takes 1,024 positions, whatever the file says
    ours = directory.load(tmp_path / "model").tokenizer
    assert ours is not None
    assert ids[0].tolist() == ours.encode("The lazy fox, über").ids
    with torch.no_grad():
        torch.testing.assert_close(theirs(ids).logits, model(ids), atol=1e-5, rtol=1e-5)


def test_rows_without_a_token_are_unused_tokens(tmp_path: Path) -> None:
    saved(tmp_path / "model", vocab=400)
    export(tmp_path / "model", tmp_path / "gguf", "gguf")
    fields = GGUFReader(tmp_path / "gguf" / "model.gguf").fields
    assert len(fields["tokenizer.ggml.tokens"].contents()) == 400
    assert fields["tokenizer.ggml.token_type"].contents()[-1] == 5


def test_other_models_are_refused_and_leave_nothing(tmp_path: Path) -> None:
    saved(tmp_path / "post", norm="post")
    saved(tmp_path / "labels", head="sequence", labels=("a", "b"))
    directory.save(tmp_path / "bert", build(preset("bert/tiny", vocab=40, width=16, layers=1)))
    tokenizer = train_character([TEXT])
    characters = build(preset("gpt2/nano", vocab=tokenizer.get_vocab_size(), width=16, layers=1, heads=2, end=0))
    directory.save(tmp_path / "characters", characters, tokenizer)
    for name, problem in (
        ("post", "norm"), ("labels", "found the head 'sequence'"), ("bert", "expected a GPT-2 for GGUF, found bert"),
        ("characters", "expected a byte-level BPE tokenizer"),
    ):  # fmt: skip
        with pytest.raises(UserError, match=f"{name}: .*{problem}"):
            export(tmp_path / name, tmp_path / "out", "gguf")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["bert", "characters", "labels", "post"]
