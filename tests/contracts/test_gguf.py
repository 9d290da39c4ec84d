"""A GGUF file of ours is the same GPT-2, with the same tokenizer, when transformers reads it."""

from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGUFReader
from tokenizers import Tokenizer, normalizers, pre_tokenizers, processors
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
    sizes: dict[str, Any] = {
        "vocab": tokenizer.get_vocab_size(),
        "width": 16,
        "layers": 2,
        "heads": 2,
        "max_positions": 1024,
    }
    sizes["activation"] = "gelu_tanh"
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
    saved(tmp_path / "erf", activation="gelu")
    saved(tmp_path / "labels", head="sequence", labels=("a", "b"))
    directory.save(tmp_path / "bert", build(preset("bert/tiny", vocab=40, width=16, layers=1)))
    tokenizer = train_character([TEXT])
    characters = build(
        preset(
            "gpt2/nano", vocab=tokenizer.get_vocab_size(), width=16, layers=1, heads=2, end=0, activation="gelu_tanh"
        )
    )
    directory.save(tmp_path / "characters", characters, tokenizer)
    for name, problem in (
        ("post", "norm"), ("erf", "activation gelu_tanh, found gelu"), ("labels", "found the head 'sequence'"),
        ("bert", "expected a WordPiece tokenizer with the prefix ##, found none"),
        ("characters", "expected a byte-level BPE tokenizer"),
    ):  # fmt: skip
        with pytest.raises(UserError, match=f"{name}: .*{problem}"):
            export(tmp_path / name, tmp_path / "out", "gguf")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["bert", "characters", "erf", "labels", "post"]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"normalizer": normalizers.Lowercase()}, "without the normalizer Lowercase"),
        ({"normalizer": normalizers.NFKC()}, "without the normalizer NFKC"),
        ({"pre_tokenizer": pre_tokenizers.ByteLevel(add_prefix_space=True)}, "without add_prefix_space=True"),
        ({"pre_tokenizer": pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)}, "use_regex=False"),
        ({"post_processor": processors.TemplateProcessing("<|endoftext|> $A", None, [("<|endoftext|>", 0)])},
         "without tokens around a text"),
    ],
)  # fmt: skip
def test_tokenizers_that_llama_cpp_would_read_differently_are_refused_by_name(
    tmp_path: Path, change: dict[str, Any], problem: str
) -> None:
    saved(tmp_path / "model")
    tokenizer = Tokenizer.from_file(str(tmp_path / "model" / "tokenizer.json"))
    for name, value in change.items():
        setattr(tokenizer, name, value)
    tokenizer.save(str(tmp_path / "model" / "tokenizer.json"))
    with pytest.raises(UserError, match=f"llama.cpp splits texts as GPT-2 does, .*{problem}"):
        export(tmp_path / "model", tmp_path / "out", "gguf")
    assert not (tmp_path / "out").exists()
