"""Model directories: loading by other tools, errors for invalid directories, and crashes during a save."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any

import ctranslate2
import huggingface_hub
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import AutoModelForImageClassification, AutoModelForSeq2SeqLM, AutoTokenizer

from manyheads import directory, export, files
from manyheads.data.text.tokenizers import train_bpe
from manyheads.models.presets import preset
from manyheads.models.transformer import Transformer
from manyheads.models.vit import ViT, ViTConfig
from tests.support.reference import SENTENCES, SHAPES, learn_to_copy, ours, theirs, tokenizer, translate

GRAY: dict[str, Any] = {"labels": ("a", "b"), "image_size": 4, "patch": 2, "channels": 1, "width": 8, "layers": 1,
                        "heads": 2, "feed_forward": 8}  # fmt: skip
TEXTS = [*SENTENCES, "a cat  </s> in Köln: 2", "", "☃ is unknown <pad>", "dog"]


@cache
def trained(shape: str) -> Transformer:
    return learn_to_copy(ours(shape, noise=0.0, encoder_heads=2, width=32))


def sources() -> list[list[int]]:
    generator = torch.Generator().manual_seed(3)
    ids = [torch.randint(2, tokenizer().get_vocab_size() - 1, (n,), generator=generator) for n in (2, 4, 5, 7, 8)]
    return [[*each.tolist(), 0] for each in ids]


@pytest.mark.parametrize("shape", SHAPES)
def test_transformers_generates_equal_text(tmp_path: Path, shape: str) -> None:
    model = trained(shape)
    directory.save(tmp_path, model, tokenizer())
    other = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    expected = [translate(model, source, limit=48) for source in sources()]
    assert sum(got == source[:-1] for got, source in zip(expected, sources(), strict=True)) >= 3, "it did not learn"
    pad = model.config.pad
    batch = AutoTokenizer.from_pretrained(tmp_path).pad({"input_ids": sources()}, return_tensors="pt")
    generated = other.generate(**batch).tolist()
    assert [[token for token in row if token not in (0, pad)] for row in generated] == expected


@pytest.mark.parametrize("shape", SHAPES)
def test_ctranslate2_gives_equal_translations(tmp_path: Path, shape: str) -> None:
    model, name = trained(shape), tokenizer().id_to_token
    directory.save(tmp_path / "hf", model, tokenizer())
    assert export.export(tmp_path / "hf", tmp_path / "ct2", "ctranslate2") == shape
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ct2", "hf"]
    assert (tmp_path / "ct2" / "tokenizer.json").is_file()
    translator = ctranslate2.Translator(str(tmp_path / "ct2"), compute_type="float32", inter_threads=1)
    tokens = [[name(token) for token in source] for source in sources()]
    results = translator.translate_batch(tokens, beam_size=1, max_decoding_length=30)
    assert [each.hypotheses[0] for each in results] == [
        [name(token) for token in translate(model, source, limit=30)] for source in sources()
    ]


@pytest.mark.parametrize("shape", SHAPES)
def test_padding_is_never_generated(tmp_path: Path, shape: str) -> None:
    """All other logits below zero, where the logit of the padding token is: only suppression keeps it away."""
    model = ours(shape, encoder_heads=2, output_bias=True)
    with torch.no_grad():
        assert model.output_bias is not None
        model.output_bias.sub_(50.0)
        model.output_bias[model.config.pad] = 0.0
    directory.save(tmp_path / "hf", model, tokenizer())
    expected = translate(model, sources()[0], limit=5)
    assert model.config.pad not in expected
    other = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "hf")
    assert other.generate(torch.tensor(sources()[:1]), max_new_tokens=5)[0].tolist()[1:5] == expected[:4]
    export.export(tmp_path / "hf", tmp_path / "ct2", "ctranslate2")
    translator = ctranslate2.Translator(str(tmp_path / "ct2"), compute_type="float32", inter_threads=1)
    source = [tokenizer().id_to_token(token) for token in sources()[0]]
    result = translator.translate_batch([source], beam_size=1, max_decoding_length=5)[0].hypotheses[0]
    assert result == [tokenizer().id_to_token(token) for token in expected]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "one number of heads, found 3 and 2"),
        ({"encoder_heads": 2, "start": 0}, "decoding to start from <pad>"),
        ({"encoder_heads": 2, "vocabulary": 70}, "the tokenizer has 60 tokens, but the model 70 and 70"),
        ({"encoder_heads": 2, "positions": "interleaved"}, "found manyheads-transformer"),
    ],
)
def test_unsupported_ctranslate2_models_are_refused(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    directory.save(tmp_path / "hf", ours("marian", **settings), tokenizer())
    with pytest.raises(ValueError, match=message):
        export.export(tmp_path / "hf", tmp_path / "out", "ctranslate2")
    assert not (tmp_path / "out").exists()


def test_export_formats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory.save(tmp_path / "hf", trained("marian"), tokenizer())
    export.export(directory.load(tmp_path / "hf"), tmp_path / "copy", "hf")
    for file in (tmp_path / "hf").iterdir():
        assert (tmp_path / "copy" / file.name).read_bytes() == file.read_bytes()
    with pytest.raises(ValueError, match="unknown format 'tflite': expected one of hf, ctranslate2, onnx"):
        export.export(tmp_path / "hf", tmp_path / "out", "tflite")
    with pytest.raises(ValueError, match="not empty"):
        export.export(tmp_path / "hf", tmp_path / "copy", "hf")
    monkeypatch.setitem(sys.modules, "ctranslate2.converters", None)
    with pytest.raises(ValueError, match=r"pip install 'manyheads\[export\]'"):
        export.export(tmp_path / "hf", tmp_path / "out", "ctranslate2")


def test_unsupported_models_are_not_exported_for_transformers(tmp_path: Path, log: pytest.LogCaptureFixture) -> None:
    own = ours("marian", positions="interleaved")
    directory.save(tmp_path / "own", own, tokenizer())
    with pytest.raises(ValueError, match=r"cannot open this model \(marian: positions .*Only manyheads can"):
        export.export(tmp_path / "own", tmp_path / "hf", "hf")
    directory.save(tmp_path / "pooled", ViT(ViTConfig(**GRAY, pool="mean")))
    with pytest.raises(ValueError, match="vit: pool is 'mean'"):
        export.export(tmp_path / "pooled", tmp_path / "hf", "hf")
    assert not (tmp_path / "hf").exists()
    directory.save(tmp_path / "grey", ViT(ViTConfig(**GRAY)))
    assert export.export(tmp_path / "grey", tmp_path / "hf", "hf") == "vit"
    assert "they convert every image to three channels" in log.text
    other = AutoModelForImageClassification.from_pretrained(tmp_path / "hf").eval()
    images = torch.randn(2, 1, 4, 4)
    torch.testing.assert_close(other(images).logits, directory.load(tmp_path / "grey").model(images))


@pytest.mark.parametrize("format", [format for format in export.FORMATS if format != "gguf"])
def test_a_failed_export_writes_nothing_and_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str
) -> None:
    directory.save(tmp_path / "hf", trained("marian"), tokenizer())

    def full_disk(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(directory, "write_tensors", full_disk)
    with pytest.raises(ValueError, match=r"model\.safetensors: cannot write: .*No space left on device"):
        export.export(tmp_path / "hf", tmp_path / "out", format)
    assert not [file for file in tmp_path.rglob("*") if "hf" not in file.parts and file.is_file()]


def test_the_tokenizer_is_equal_in_transformers_and_after_reload(tmp_path: Path) -> None:
    directory.save(tmp_path, trained("marian"), tokenizer())
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    again = directory.load(tmp_path).tokenizer
    assert again is not None
    for text in TEXTS:
        expected = tokenizer().encode(text).ids
        assert expected[-1] == 0
        assert theirs(text)["input_ids"] == again.encode(text).ids == expected
        assert theirs.decode(expected, skip_special_tokens=True) == tokenizer().decode(expected)
    assert set(theirs(TEXTS, padding=True)) == {"input_ids", "attention_mask"}
    assert theirs(TEXTS, padding=True)["input_ids"][-1][-1] == theirs.pad_token_id == trained("marian").config.pad
    assert (theirs.eos_token_id, theirs.unk_token_id) == (0, 1)


def test_two_vocabularies_are_trained(tmp_path: Path) -> None:
    target = train_bpe(["drei Katzen"] * 3, 23)
    size = target.get_vocab_size()
    special = {"pad": size - 1, "start": size - 1}
    model = ours("marian", target_vocab=size, tie="target", **special)
    with pytest.raises(ValueError, match="two vocabularies, of 60 and"):
        directory.save(tmp_path, model, tokenizer())
    assert directory.save(tmp_path, model, tokenizer(), target) == "manyheads-transformer"
    loaded = directory.load(tmp_path)
    assert loaded.tokenizer is not None
    assert loaded.target_tokenizer is not None
    assert loaded.tokenizer.get_vocab() == tokenizer().get_vocab()
    assert loaded.target_tokenizer.get_vocab() == target.get_vocab()
    directory.save(tmp_path, trained("marian"), tokenizer())  # a stale target_tokenizer.json is not believed
    loaded = directory.load(tmp_path)
    assert loaded.target_tokenizer is loaded.tokenizer
    assert (tmp_path / "target_tokenizer.json").is_file()


def write(path: Path, name: str, content: str | bytes) -> None:
    (path / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def scale_weights(path: Path, factor: float) -> None:
    file = path / "model.safetensors"
    save_file({name: tensor * factor for name, tensor in load_file(file).items()}, file)


def store_as_float8(path: Path) -> None:
    file = path / "model.safetensors"
    save_file({name: tensor.to(torch.float8_e4m3fn) for name, tensor in load_file(file).items()}, file)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: (path / "config.json").unlink(), "no config.json: this is not a model directory"),
        (lambda path: (path / "model.safetensors").unlink(), "no model.safetensors: the directory is incomplete"),
        (lambda path: (path / "tokenizer.json").unlink(), "found no tokenizer.json; the directory is incomplete"),
        (lambda path: os.truncate(path / "model.safetensors", 5000), "model.safetensors: truncated or damaged"),
        (lambda path: os.truncate(path / "model.safetensors", 0), "model.safetensors: truncated or damaged"),
        (lambda path: write(path, "config.json", "{"), "config.json: invalid JSON"),
        (lambda path: write(path, "config.json", b"\xff{}"), "config.json: invalid JSON"),
        (lambda path: write(path, "config.json", "[]"), "config.json: expected a JSON object, found list"),
        (lambda path: write(path, "config.json", "{}"), "expected a model of type marian, pegasus"),
        (lambda path: write(path, "config.json", '{"model_type": "t5"}'), "'model_type' is 't5'"),
        (lambda path: write(path, "tokenizer.json", "{}"), "tokenizer.json: not a tokenizer"),
        (
            lambda path: train_bpe(["".join(map(chr, range(97, 180)))], 87).save(str(path / "tokenizer.json")),
            "use files of the same model",
        ),
        (store_as_float8, "is float8_e4m3fn: expected float32, float16 or bfloat16. Convert the weights"),
        (lambda path: scale_weights(path, float("nan")), "not finite: the file is damaged, or training diverged"),
    ],
)
def test_invalid_models_are_refused(tmp_path: Path, damage: Any, message: str) -> None:
    directory.save(tmp_path, ours("marian"), tokenizer())
    damage(tmp_path)
    with pytest.raises(ValueError, match=message) as caught:
        directory.load(tmp_path)
    assert "\n" not in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_other_invalid_requests_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no such directory"):
        directory.load(tmp_path / "nowhere")
    theirs("marian").save_pretrained(tmp_path)
    write(tmp_path, "source.spm", "")
    with pytest.raises(ValueError, match=r"source\.spm without target\.spm, vocab\.json"):
        directory.load(tmp_path)


class Malicious:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def test_pickled_weights_are_refused_and_converted(tmp_path: Path) -> None:
    other, old = theirs("marian"), tmp_path / "old"
    other.save_pretrained(old)
    (old / "model.safetensors").unlink()
    torch.save(other.state_dict(), old / "pytorch_model.bin")
    with pytest.raises(ValueError, match=f"never loaded. Make a safe copy with 'manyheads convert {old} OUT'"):
        directory.load(old)
    export.convert(old, tmp_path / "new")
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == [
        "config.json", "generation_config.json", "model.safetensors",
    ]  # fmt: skip
    again, info = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "new", output_loading_info=True)
    assert not any(info.values()), info
    for name, tensor in other.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name
    assert directory.load(tmp_path / "new").family == "marian"
    with pytest.raises(ValueError, match="not empty"):
        export.convert(old, tmp_path / "new")
    with pytest.raises(ValueError, match=r"no pytorch_model\.bin to convert, weights already safe"):
        export.convert(tmp_path / "new", tmp_path / "other")
    infinite = {"model.encoder.layers.0.fc1.bias": torch.full_like(other.model.encoder.layers[0].fc1.bias, torch.inf)}
    torch.save({**other.state_dict(), **infinite}, old / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"old: .* not finite: the file is damaged, or training diverged"):
        export.convert(old, tmp_path / "other")


@pytest.mark.parametrize("how", ["torch", "pickle", "truncated", "list"])
def test_a_malicious_pickle_is_not_executed(tmp_path: Path, how: str) -> None:
    old, trap = tmp_path / "old", tmp_path / "executed"
    theirs("marian").save_pretrained(old)
    (old / "model.safetensors").unlink()
    bomb: Any = {"model.shared.weight": Malicious(trap)}
    if how == "pickle":
        write(old, "pytorch_model.bin", pickle.dumps(bomb, 2))
    else:
        torch.save([torch.ones(2)] if how == "list" else bomb, old / "pytorch_model.bin")
    if how == "truncated":
        os.truncate(old / "pytorch_model.bin", 100)
    for action in (lambda: directory.load(old), lambda: export.convert(old, tmp_path / "new")):
        with pytest.raises(ValueError, match=r"pytorch_model\.bin") as caught:
            action()
        assert "\n" not in str(caught.value)
        assert "weights_only" not in str(caught.value)
    assert not trap.exists()
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("failing", range(1, 6))
def test_a_failed_save_keeps_existing_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int) -> None:
    directory.save(tmp_path, ours("marian"), tokenizer())
    (tmp_path / "notes.txt").write_text("mine")
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    synced = 0
    original = files._sync

    def full_disk(path: Path) -> None:
        nonlocal synced
        synced += 1
        if synced == failing:
            raise OSError(28, "No space left on device")
        original(path)

    monkeypatch.setattr(files, "_sync", full_disk)
    with pytest.raises(ValueError, match="No space left on device"):
        directory.save(tmp_path, trained("marian"), tokenizer())
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_a_flipped_bit_in_the_weights_is_detected(tmp_path: Path) -> None:
    directory.save(tmp_path, ours("marian"), tokenizer())
    file = tmp_path / "model.safetensors"
    content = file.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")  # of the tensors
    for place in (start, (start + len(content)) // 2, len(content) - 1):
        file.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        with pytest.raises(ValueError, match=r"model\.safetensors: damaged, the checksum does not match; copy or save"):
            directory.load(tmp_path)
    save_file(load_file(file), file, metadata={"format": "pt"})  # as others write it, with the same damage
    directory.load(tmp_path)


def save_for_ever(path: Path) -> None:
    torch.set_num_threads(1)
    model = Transformer(preset("transformer/tiny", source_vocab=9, target_vocab=9, pad=8, end=0, start=8, width=256))
    while True:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(1)
        directory.save(path, model, None)


def test_a_killed_save_never_leaves_a_partial_model(tmp_path: Path) -> None:
    for attempt, delay in enumerate((0.05, 0.117, 0.233)):
        path = tmp_path / str(attempt)
        # a fork, which has torch imported already
        process = multiprocessing.get_context("fork").Process(target=save_for_ever, args=(path,))
        process.start()
        while not (path / "config.json").is_file():
            assert process.is_alive()
            time.sleep(0.001)
        time.sleep(delay)
        process.kill()
        process.join()
        model = directory.load(path).model
        norms = [weight for name, weight in model.named_parameters() if name.endswith("norm.weight")]
        assert len({float(weight.detach().mean()) for weight in norms}) == 1, "weights of several steps"


def test_only_hub_names_reach_the_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory.save(tmp_path, ours("marian"), tokenizer())
    calls: list[tuple[str, str | None, list[str]]] = []

    def snapshot_download(name: str, revision: str | None, allow_patterns: list[str], **_: object) -> str:
        calls.append((name, revision, allow_patterns))
        if name == "no/where":
            raise OSError("cannot reach\nthe hub")
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    directory.load(tmp_path)
    assert not calls
    assert directory.load("hub:owner/name@v1").path == tmp_path
    directory.load("hub:owner/name")
    assert [call[:2] for call in calls[::2]] == [("owner/name", "v1"), ("owner/name", None)]
    assert not any("bin" in pattern or "py" in pattern or pattern == "*" for call in calls for pattern in call[2])
    with pytest.raises(ValueError, match=r"hub:no/where: download failed \(cannot reach\)"):
        directory.load("hub:no/where")


def test_saved_files_have_their_format(tmp_path: Path) -> None:
    """The Marian paragraph of the design, key by key."""
    model = trained("marian")
    directory.save(tmp_path, model, tokenizer())
    pad = tokenizer().get_vocab_size() - 1
    config = json.loads((tmp_path / "config.json").read_text())
    generation = json.loads((tmp_path / "generation_config.json").read_text())
    about = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert config["pad_token_id"] == config["decoder_start_token_id"] == generation["decoder_start_token_id"] == pad
    assert (config["forced_eos_token_id"], config["activation_function"], config["scale_embedding"]) == (
        0,
        "relu",
        True,
    )
    assert generation["bad_words_ids"] == [[pad]]
    assert about["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert isinstance(Tokenizer.from_file(str(tmp_path / "tokenizer.json")), Tokenizer)
    other = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert other.model.encoder.layers[0].final_layer_norm.eps == model.config.norm_eps == 1e-5
    assert not other.model.shared.weight[pad].any()
