"""Directories in the layouts of the Hub: pickled or sharded weights, and vocabularies in separate files."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
import transformers
from huggingface_hub.utils import filter_repo_objects
from torch import nn

from manyheads import directory, export
from manyheads.data.text.tokenizers import END_OF_TEXT, train_byte_bpe
from tests.support.opus import ENGLISH, GERMAN, sentencepiece_model, write_opus
from tests.support.reference import randomize, theirs

TEXTS = ["a dog, two cats: 42 paws", "the [MASK] </s> <|endoftext|> Männer", ""]


def bert(path: Path) -> nn.Module:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "the", "dog", "cat", "##s", "two", ",", "4", "##2"]
    (path / "vocab.txt").write_text("".join(f"{word}\n" for word in words))
    (path / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    config = transformers.BertConfig(
        vocab_size=len(words), hidden_size=12, num_hidden_layers=2, num_attention_heads=2, intermediate_size=20,
        max_position_embeddings=16, id2label={0: "bad", 1: "good", 2: "odd"},
    )  # fmt: skip
    return transformers.BertForSequenceClassification(config)


def gpt2(path: Path) -> nn.Module:
    model = json.loads(train_byte_bpe([*ENGLISH, *GERMAN], 290).to_str())["model"]
    (path / "vocab.json").write_text(json.dumps({**model["vocab"], END_OF_TEXT: 289}))
    (path / "merges.txt").write_text("#version: 0.2\n" + "".join(" ".join(pair) + "\n" for pair in model["merges"]))
    ids: dict[str, Any] = {"bos_token_id": 289, "eos_token_id": 289}
    config = transformers.GPT2Config(vocab_size=290, n_positions=16, n_embd=12, n_layer=2, n_head=2, **ids)
    return transformers.GPT2LMHeadModel(config)


def gpt(path: Path) -> nn.Module:
    pieces = ["<unk>", "d", "o", "g</w>", "do", "dog</w>", "a</w>"]
    (path / "vocab.json").write_text(json.dumps({piece: i for i, piece in enumerate(pieces)}))
    (path / "merges.txt").write_text("#version: 0.2\nd o\ndo g</w>\n")
    return transformers.OpenAIGPTLMHeadModel(
        transformers.OpenAIGPTConfig(vocab_size=7, n_positions=16, n_embd=12, n_layer=2, n_head=2)
    )


def pegasus(path: Path) -> nn.Module:
    special = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
    (path / "spiece.model").write_bytes(sentencepiece_model([*ENGLISH, *GERMAN], 90, **special))
    return theirs("pegasus", vocab_size=250, d_model=24)


def marian(path: Path) -> nn.Module:
    model, _ = write_opus(path)
    (path / "model.safetensors").unlink()
    return model


KINDS: dict[str, Callable[[Path], nn.Module]] = {
    "bert": bert, "gpt2": gpt2, "openai-gpt": gpt, "pegasus": pegasus, "marian": marian,
}  # fmt: skip
VOCABULARIES = {
    "bert": ["vocab.txt", "tokenizer_config.json"], "gpt2": ["vocab.json", "merges.txt"],
    "openai-gpt": ["vocab.json", "merges.txt"], "pegasus": ["spiece.model"],
    "marian": ["source.spm", "target.spm", "vocab.json", "tokenizer_config.json"],
}  # fmt: skip


def build(kind: str, path: Path) -> Any:
    path.mkdir()
    torch.manual_seed(0)
    model: Any = KINDS[kind](path)
    return model if kind in ("marian", "pegasus") else randomize(model, 0)


def pickle_weights(model: Any, path: Path, shards: int) -> None:
    """As transformers wrote them before safetensors: everything in the state, tied weights under all their names."""
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(path)
    state = {name: tensor.clone() if shards > 1 else tensor for name, tensor in model.state_dict().items()}
    if shards == 1:
        torch.save(state, path / "pytorch_model.bin")
        return
    where = {name: f"pytorch_model-{i % shards + 1:05}-of-{shards:05}.bin" for i, name in enumerate(state)}
    for file in set(where.values()):
        torch.save({name: state[name] for name in state if where[name] == file}, path / file)
    (path / "pytorch_model.bin.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))


def assert_same(found: directory.Loaded, expected: directory.Loaded) -> None:
    assert found.family == expected.family
    parameters = dict(expected.model.named_parameters())
    assert {name: torch.equal(p, parameters[name]) for name, p in found.model.named_parameters()} == dict.fromkeys(
        parameters, True
    )
    for ours, others in zip(
        (found.tokenizer, found.target_tokenizer), (expected.tokenizer, expected.target_tokenizer), strict=True
    ):
        assert ours is not None
        assert others is not None
        assert [each.ids for each in ours.encode_batch(TEXTS)] == [each.ids for each in others.encode_batch(TEXTS)]


@pytest.mark.parametrize("kind", KINDS)
def test_shards_and_one_file_give_equal_models(tmp_path: Path, kind: str) -> None:
    model = build(kind, tmp_path / "one")
    model.save_pretrained(tmp_path / "one")
    build(kind, tmp_path / "several")
    model.save_pretrained(tmp_path / "several", max_shard_size="8KB")
    assert len(list((tmp_path / "several").glob("model-*-of-*.safetensors"))) > 1
    one = directory.load(tmp_path / "one")
    assert_same(directory.load(tmp_path / "several"), one)
    name = directory.save(tmp_path / "saved", one.model, one.tokenizer, one.target_tokenizer, vocabulary=one.vocabulary)
    assert name == kind
    assert_same(directory.load(tmp_path / "saved"), one)
    assert one.tokenizer is not None
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert theirs(TEXTS)["input_ids"] == [each.ids for each in one.tokenizer.encode_batch(TEXTS)]
    original = transformers.AutoTokenizer.from_pretrained(tmp_path / "one")
    assert original(TEXTS)["input_ids"] == theirs(TEXTS)["input_ids"]


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_pickles_are_converted_with_their_vocabularies(tmp_path: Path, kind: str, shards: int) -> None:
    model = build(kind, tmp_path / "old")
    pickle_weights(model, tmp_path / "old", shards)
    with pytest.raises(ValueError, match=f"Make a safe copy with 'manyheads convert {tmp_path / 'old'} OUT'"):
        directory.load(tmp_path / "old")
    export.convert(tmp_path / "old", tmp_path / "new")
    names = {file.name for file in (tmp_path / "new").iterdir()}
    assert not any("index" in name or name.endswith(".bin") for name in names)
    for name in VOCABULARIES[kind]:
        assert (tmp_path / "new" / name).read_bytes() == (tmp_path / "old" / name).read_bytes()
    again, info = type(model).from_pretrained(tmp_path / "new", output_loading_info=True)
    assert not any(info.values()), info
    for name, tensor in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name
    build(kind, tmp_path / "safe")
    model.save_pretrained(tmp_path / "safe")
    assert_same(directory.load(tmp_path / "new"), directory.load(tmp_path / "safe"))


def shard(path: Path, number: int = 1) -> Path:
    return sorted(path.glob("model-*-of-*.safetensors"))[number]


def point_elsewhere(path: Path, name: Any) -> None:
    index = path / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"][next(iter(content["weight_map"]))] = name
    index.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: shard(path).unlink(), r"no model-0000\d-of-\d+.safetensors, but model.safetensors.index.json"),
        (lambda path: os.truncate(shard(path), 50), r"model-\d+-of-\d+.safetensors: truncated or damaged"),
        (lambda path: os.replace(shard(path), shard(path, 0)), "model.safetensors.index.json refers to it"),
        (lambda path: shard(path).write_bytes(shard(path, 0).read_bytes()), "the tensors differ from those in model"),
        (lambda path: point_elsewhere(path, shard(path, 2).name), "the tensors differ from those in"),
        (lambda path: point_elsewhere(path, "../model.safetensors"), "expected a 'weight_map'"),
        (lambda path: point_elsewhere(path, "/dev/null"), "expected a 'weight_map'"),
        (lambda path: point_elsewhere(path, 3), "expected a 'weight_map'"),
        (lambda path: (path / "model.safetensors.index.json").write_text("{"), "expected a 'weight_map'"),
        (lambda path: (path / "model.safetensors.index.json").write_text("[]"), "expected a 'weight_map'"),
    ],
)
def test_damaged_shards_are_reported(tmp_path: Path, damage: Callable[[Path], None], message: str) -> None:
    path = tmp_path / "model"
    build("gpt2", path).save_pretrained(path, max_shard_size="8KB")
    damage(path)
    with pytest.raises(ValueError, match=message) as caught:
        directory.load(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


class Malicious:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def test_a_malicious_shard_is_not_executed(tmp_path: Path) -> None:
    path = tmp_path / "old"
    pickle_weights(build("bert", path), path, 3)
    torch.save({"x": Malicious(tmp_path / "executed")}, path / "pytorch_model-00002-of-00003.bin")
    with pytest.raises(ValueError, match="pytorch_model-00002-of-00003.bin: expected plain weights"):
        export.convert(path, tmp_path / "new")
    assert not (tmp_path / "executed").exists()
    assert not (tmp_path / "new").exists()


NEEDED = {
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "target_tokenizer.json",
    "vocab.txt", "vocab.json", "target_vocab.json", "merges.txt", "source.spm", "target.spm", "spiece.model",
    "special_tokens_map.json", "added_tokens.json", "modules.json", "1_Pooling/config.json",
    "sentence_bert_config.json", "adapter_config.json", "adapter_model.safetensors",
    "config_sentence_transformers.json",
}  # fmt: skip
SAFE = {"model.safetensors", "model.safetensors.index.json", "model-00001-of-00002.safetensors"}
PICKLED = {"pytorch_model.bin", "pytorch_model.bin.index.json", "pytorch_model-00001-of-00002.bin"}
OTHERS = {
    ".gitattributes", "README.md", "flax_model.msgpack", "tf_model.h5", "rust_model.ot", "training_args.bin",
    "optimizer.pt", "modeling.py", "trainer_state.json", "onnx/model.onnx", "onnx/config.json",
    "model.fp16.safetensors", "onnx/model.safetensors", "consolidated.safetensors", "x/vocab.txt",
    "coreml/model-00001-of-00002.safetensors",
}  # fmt: skip


def test_only_needed_files_are_downloaded_from_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[set[str]] = []
    repository = [*NEEDED, *SAFE, *PICKLED, *OTHERS]

    def snapshot_download(name: str, revision: str | None, allow_patterns: list[str], **_: object) -> str:
        fetched.append(set(filter_repo_objects(repository, allow_patterns=allow_patterns)))
        return str(tmp_path / "model")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    model = build("marian", tmp_path / "model")
    pickle_weights(model, tmp_path / "model", 1)
    export.convert("hub:owner/name", tmp_path / "new")
    model.save_pretrained(tmp_path / "model")
    directory.load("hub:owner/name@main")
    assert fetched == [NEEDED, NEEDED | PICKLED, NEEDED, NEEDED | SAFE]


def test_an_unknown_architecture_is_refused_before_its_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[list[str]] = []

    def snapshot_download(name: str, revision: str | None, allow_patterns: list[str], **_: object) -> str:
        fetched.append(allow_patterns)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    (tmp_path / "config.json").write_text('{"model_type": "t5", "architectures": ["T5ForConditionalGeneration"]}')
    with pytest.raises(ValueError, match="found T5ForConditionalGeneration"):
        directory.load("hub:owner/name")
    assert len(fetched) == 1
    assert not any(pattern.startswith("model") for pattern in fetched[0])
