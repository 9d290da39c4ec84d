"""Exports with weights in float16 and 8 bits: smaller files, and outputs close to the model's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ctranslate2
import numpy as np
import onnxruntime
import pytest
import torch
from gguf import GGUFReader, dequantize
from tokenizers import Tokenizer

from manyheads import directory
from manyheads.errors import UserError
from manyheads.export import export
from manyheads.export.graphs import Weights
from manyheads.models.bert import Bert
from manyheads.tasks.loading import load
from tests.support import services
from tests.support.reference import learn_to_copy, ours, tokenizer, translate

NARROW: tuple[Weights, ...] = ("float16", "int8")
ALL: tuple[Weights, ...] = ("float32", *NARROW)


def size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir() if file.suffix in (".onnx", ".bin", ".gguf", ".data"))


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("narrow") / "classifier"
    return services.bert(folder, head="sequence", labels=("negative", "positive"), width=64, feed_forward=128)


def test_onnx_files_are_smaller_and_nearly_equal(
    classifier: Path, tmp_path: Path, log: pytest.LogCaptureFixture
) -> None:
    found = load(classifier)
    ids, attended = torch.randint(5, 50, (4, 9)), torch.ones(4, 9, dtype=torch.long)
    expected = found.model(ids, torch.full((4,), 9)).detach().numpy()
    sizes = []
    for weights in ALL:
        export(classifier, tmp_path / weights, "onnx", weights)
        sizes.append(size(tmp_path / weights))
        session = onnxruntime.InferenceSession(tmp_path / weights / "model.onnx", providers=["CPUExecutionProvider"])
        feed = {"input_ids": ids, "attention_mask": attended, "token_type_ids": torch.zeros_like(ids)}
        names = [entry.name for entry in session.get_inputs()]
        logits = session.run(None, {name: feed[name].numpy() for name in names})[0]
        error = np.linalg.norm(logits - expected) / np.linalg.norm(expected)
        assert error < {"float32": 1e-5, "float16": 0.01, "int8": 0.1}[weights]
    assert sizes[1] < 0.65 * sizes[0]
    assert sizes[2] < 0.65 * sizes[0]
    assert log.text.count("the largest error of ONNX Runtime is") == 3


def test_ctranslate2_translates_with_narrow_weights(tmp_path: Path, log: pytest.LogCaptureFixture) -> None:
    model = learn_to_copy(ours("marian", noise=0.0, encoder_heads=2, width=32))
    directory.save(tmp_path / "hf", model, tokenizer())
    name, source = tokenizer().id_to_token, [5, 9, 7, 0]
    export(tmp_path / "hf", tmp_path / "float32", "ctranslate2")
    for weights in NARROW:
        export(tmp_path / "hf", tmp_path / weights, "ctranslate2", weights)
        assert size(tmp_path / weights) < 0.75 * size(tmp_path / "float32")
        translator = ctranslate2.Translator(str(tmp_path / weights), inter_threads=1)
        [result] = translator.translate_batch([[name(i) for i in source]], beam_size=1, max_decoding_length=20)
        assert result.hypotheses[0] == [name(token) for token in translate(model, source, limit=20)]
    assert log.text.count("the largest error of a log-probability") == 3


def test_formats_without_narrow_weights_are_refused(classifier: Path, tmp_path: Path) -> None:
    for format, weights, message in (
        ("hf", "int8", "available for the formats ctranslate2, onnx, gguf, found hf"),
        ("onnx", "int4", "weights is 'int4': expected float32, float16, int8"),
    ):
        with pytest.raises(UserError, match=message):
            export(classifier, tmp_path / "out", format, weights)  # type: ignore[arg-type]
    assert not (tmp_path / "out").exists()


def test_gguf_of_an_encoder_has_its_tensors(classifier: Path, tmp_path: Path) -> None:
    model: Any = load(classifier).model
    expected = model.embedding.weight.detach().numpy()
    for weights, tolerance in zip(ALL, (0.0, 1e-3, 0.02), strict=True):
        export(classifier, tmp_path / weights, "gguf", weights)
        reader = GGUFReader(tmp_path / weights / "model.gguf")
        tensors = {tensor.name: tensor for tensor in reader.tensors}
        assert len(tensors) == 5 + 2 * 16  # of the embeddings and of each layer
        found = dequantize(tensors["token_embd.weight"].data, tensors["token_embd.weight"].tensor_type)
        assert np.abs(found - expected).max() <= tolerance * np.abs(expected).max()
        assert reader.fields["bert.pooling_type"].contents() == 1
        assert reader.fields["bert.attention.causal"].contents() is False
    words = reader.fields["tokenizer.ggml.tokens"].contents()
    assert "[CLS]" in words
    assert any(word.startswith("\u2581") for word in words)
    assert not any(word.startswith("##") for word in words)


def test_encoders_that_llama_cpp_would_read_differently_are_refused(classifier: Path, tmp_path: Path) -> None:
    loaded = directory.load(classifier)
    assert isinstance(loaded.model, Bert)
    assert loaded.tokenizer is not None
    cased = loaded.tokenizer.to_str().replace('"lowercase":true', '"lowercase":false')
    directory.save(tmp_path / "cased", loaded.model, Tokenizer.from_str(cased))
    with pytest.raises(UserError, match="expected an uncased tokenizer"):
        export(tmp_path / "cased", tmp_path / "out", "gguf")
    narrow = services.bert(tmp_path / "narrow", width=24, feed_forward=48)
    with pytest.raises(UserError, match="multiples of 32, found 24"):
        export(narrow, tmp_path / "out", "gguf", "int8")
    assert not (tmp_path / "out").exists()


TEXTS = ("the cat sat on the mat", "Naïve café!", "a dog", "THE DOG sat, the cat")


def test_llama_cpp_computes_the_same_vectors(minilm: Path, tmp_path: Path) -> None:
    llama = pytest.importorskip("llama_cpp")
    predictor = load(minilm)
    expected = np.stack([entry.vector for entry in predictor.embed(list(TEXTS))])
    for weights, least in zip(ALL, (0.9999, 0.9998, 0.998), strict=True):
        export(minilm, tmp_path / weights, "gguf", weights)
        model = llama.Llama(str(tmp_path / weights / "model.gguf"), embedding=True, verbose=False, n_threads=1)
        found = np.array([model.embed(text, normalize=True) for text in TEXTS])
        assert (found * expected).sum(1).min() > least
