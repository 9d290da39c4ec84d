"""ONNX Runtime and torch.export compute the outputs of every family; decoding with the files gives our tokens."""

import json
import tempfile
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
import transformers

from manyheads import directory
from manyheads.errors import UserError
from manyheads.export import export
from manyheads.export.graphs import graphs
from manyheads.models.presets import build, preset
from tests.support import reference

Exported = Callable[[str], tuple[Any, Path]]

PAD = 2
TEXT: dict[str, Any] = {"vocab": 60, "width": 16, "layers": 2, "heads": 2, "max_positions": 20}
BERT = {**TEXT, "feed_forward": 32}
SIDES = {f"{side}_{name}": 2 for side in ("encoder", "decoder") for name in ("layers", "heads")}
TRANSLATOR = {**SIDES, "source_vocab": 60, "target_vocab": 60, "width": 16, "max_positions": 20}
CLASSES = {"labels": ("no", "yes", "maybe")}
IMAGES = {**CLASSES, "image_size": 16, "stem_width": 8, "widths": (8, 8), "depths": (1, 1)}
FAMILIES: dict[str, tuple[str, Mapping[str, Any]]] = {
    "bert": ("bert/tiny", {**BERT, "head": "pooler"}),
    "distilbert": ("bert/tiny", {**BERT, "head": "none", "segment_types": None}),
    "masked words": ("bert/tiny", {**BERT, "head": "masked_lm"}),
    "pretraining": ("bert/tiny", {**BERT, "head": "pretraining"}),
    "text labels": ("bert/tiny", {**BERT, **CLASSES, "head": "sequence"}),
    "token labels": ("bert/tiny", {**BERT, **CLASSES, "head": "token"}),
    "answers": ("bert/tiny", {**BERT, "head": "question"}),
    "roberta": (
        "bert/tiny",
        {
            **BERT,
            **CLASSES,
            "head": "sequence",
            "segment_types": 1,
            "dropout_below_pooler": True,
            "pad": PAD,
            "position_offset": PAD + 1,
            "norm_eps": 1e-5,
        },
    ),
    "choices": ("bert/tiny", {**BERT, "head": "choice"}),
    "gpt2": ("gpt2/nano", TEXT),
    "gpt": ("gpt2/nano", {**TEXT, "norm": "post"}),
    "gpt labels": ("gpt2/nano", {**TEXT, **CLASSES, "head": "sequence", "pad": PAD}),
    "transformer": ("transformer/tiny", TRANSLATOR),
    "text classifier": ("text-classifier/textbook", {"vocab": 60, "width": 16, "max_positions": 20}),
    "masked text classifier": ("text-classifier/textbook", {"vocab": 60, "masked": True, "pooling": "mean"}),
    "vit": ("vit/2-8", {**CLASSES, "registers": 2, "layer_scale": 0.1}),
    "vit features": ("vit/2-8", {"labels": ()}),
    "deit": ("vit/2-8", {**CLASSES, "distilled": True}),
    "resnet": ("resnet/18-se", IMAGES),
    "efficientnet": ("efficientnet/b0", {**CLASSES, "image_size": 40, "width": 0.25, "depth": 0.3}),
    "regnet": ("regnet/y-200mf", {**CLASSES, "image_size": 40, "depths": (1, 1), "widths": (16, 32), "stem_width": 8}),
    "bit": ("bit/50x1", {**CLASSES, "image_size": 40, "depths": (1, 1), "widths": (32, 64), "groups": 4}),
    "nonlocal": ("nonlocal/18-small", {**IMAGES, "stages": (2,), "every": 1}),
    "local attention": ("local-attention/18-small", {**IMAGES, "heads": 2}),
    "selective kernels": ("sknet/18-small", IMAGES),
    "split attention": ("resnest/18-small", IMAGES),
    "global attention": ("gsa/18-small", {**IMAGES, "heads": 2}),
    "convolution by attention": (
        "conv-attention/quadratic-small",
        {**CLASSES, "image_size": 8, "width": 16, "heads": 4},
    ),
}
SIZES = (
    {"batch": 1, "tokens": 1, "source": 1, "past": 0, "past + tokens": 1},
    {"batch": 3, "tokens": 9, "source": 13, "past": 5, "past + tokens": 14},
)


def tiny(name: str) -> Any:
    """Build a model with weights large enough for outputs of the order of one."""
    torch.manual_seed(1)
    base, settings = FAMILIES[name]
    model = build(preset(base, **settings)).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """Return a function from the name of a family to its tiny model and the directory with its ONNX files."""

    @cache
    def by_name(name: str) -> tuple[Any, Path]:
        folder, model = tmp_path_factory.mktemp("exported"), tiny(name)
        directory.save(folder / "model", model)
        export(folder / "model", folder / "onnx", "onnx")
        return model, folder / "onnx"

    return by_name


@pytest.mark.parametrize("name", FAMILIES)
def test_onnx_runtime_computes_the_same_outputs(name: str, exported: Exported) -> None:
    model, folder = exported(name)
    for file, graph in graphs(model).items():
        session = onnxruntime.InferenceSession(str(folder / f"{file}.onnx"))
        assert [entry.name for entry in session.get_outputs()] == list(graph.outputs)
        for sizes in SIZES:
            tensors = [entry.example(sizes) for entry in graph.inputs]
            for entry, tensor in zip(graph.inputs, tensors, strict=True):
                if entry.name.endswith("attention_mask") and "past + tokens" not in entry.shape:
                    tensor[1:2, ..., 4:] = 0  # padding of the second row
            feed = {entry.name: tensor.numpy() for entry, tensor in zip(graph.inputs, tensors, strict=True)}
            with torch.no_grad():
                expected = graph(*tensors)
            for found, ours in zip(session.run(None, feed), expected, strict=True):
                assert np.abs(ours.numpy()).max(initial=1) > 0.05
                np.testing.assert_allclose(found, ours.numpy(), atol=1e-4, rtol=1e-4)


def test_decoding_a_gpt_with_the_file_gives_our_tokens(exported: Exported) -> None:
    model, folder = exported("gpt2")
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"))
    names = [entry.name for entry in session.get_inputs()[3:]]
    past = {name: np.zeros((2, 2, 0, 8), np.float32) for name in names}
    # The first row begins with padding, as a batch of prompts of different lengths does.
    prompt, mask = np.array([[0, 0, 5, 6], [1, 2, 3, 4]]), np.array([[0, 0, 1, 1], [1, 1, 1, 1]])
    tokens, chosen = prompt, []
    for _ in range(6):
        positions = np.maximum(mask.cumsum(1) - 1, 0)[:, -tokens.shape[1] :]
        feed = {"input_ids": tokens, "attention_mask": mask, "position_ids": positions, **past}
        logits, *present = session.run(None, feed)
        tokens = logits[:, -1].argmax(-1)[:, None]
        mask, past = np.pad(mask, ((0, 0), (0, 1)), constant_values=1), dict(zip(names, present, strict=True))
        chosen.append(tokens[:, 0].tolist())
    for row, start in enumerate(([5, 6], [1, 2, 3, 4])):
        expected = list(start)
        for _ in range(6):
            with torch.no_grad():
                expected.append(int(model(torch.tensor([expected]))[0, -1].argmax()))
        assert [column[row] for column in chosen] == expected[len(start) :]


def test_decoding_a_translator_with_the_files_gives_our_tokens(exported: Exported) -> None:
    model, folder = exported("transformer")
    encoder, first, later = (
        onnxruntime.InferenceSession(str(folder / f"{name}.onnx"))
        for name in ("encoder_model", "decoder_model", "decoder_with_past_model")
    )
    source, mask = np.array([[5, 6, 7], [8, 9, 0]]), np.array([[1, 1, 1], [1, 1, 0]])
    (memory,) = encoder.run(None, {"input_ids": source, "attention_mask": mask})
    tokens, chosen, past = np.array([[0], [0]]), [], dict[str, Any]()
    for step in range(6):
        session = later if step else first
        more = past if step else {"encoder_hidden_states": memory}
        outputs = session.run(None, {"input_ids": tokens, "encoder_attention_mask": mask, **more})
        names = [entry.name.replace("present", "past_key_values") for entry in session.get_outputs()]
        past |= dict(zip(names[1:], outputs[1:], strict=True))
        tokens = outputs[0][:, -1].argmax(-1)[:, None]
        chosen.append(tokens)
    target = torch.zeros(2, 1, dtype=torch.long)
    for _ in range(6):
        with torch.no_grad():
            logits = model(torch.tensor(source), torch.tensor([3, 2]), target)
        target = torch.cat([target, logits[:, -1].argmax(-1, keepdim=True)], 1)
    assert np.concatenate(chosen, 1).tolist() == target[:, 1:].tolist()


@pytest.mark.parametrize("mask", [[0, 0, 1, 1, 1, 1], [1, 0, 1, 1, 0, 1], [1, 1, 1, 1, 0, 0]])
@pytest.mark.parametrize("name", ["text labels", "roberta", "gpt labels", "text classifier", "translator"])
def test_a_mask_counts_by_position(name: str, mask: list[int]) -> None:
    """Outputs equal those of transformers, and those of the text without the masked tokens in our own classifier."""
    model, ids = reference.ours("marian") if name == "translator" else tiny(name), torch.tensor([[3, 1, 5, 6, 7, 8]])
    graph, attention = next(iter(graphs(model).values())), torch.tensor([mask])
    ids = ids if name == "text labels" else ids.where(attention == 1, PAD)
    with torch.no_grad():
        (found,) = graph(ids, attention, *[torch.zeros_like(ids)] * (len(graph.inputs) - 2))
        if name == "text classifier":
            expected = model(ids[attention == 1][None])
        else:
            with tempfile.TemporaryDirectory() as folder:
                directory.save(folder, model)
                kind = "AutoModelForSeq2SeqLM" if name == "translator" else "AutoModelForSequenceClassification"
                theirs = getattr(transformers, kind).from_pretrained(folder).eval()
            theirs = theirs.get_encoder() if name == "translator" else theirs
            expected = theirs(ids, attention_mask=attention)[0]
    real = attention[0] == 1 if name == "translator" else slice(None)
    torch.testing.assert_close(found[:, real], expected[:, real], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["vit", "text labels", "gpt2"])
def test_files_of_torch_export_compute_the_same_outputs(name: str, tmp_path: Path) -> None:
    model = tiny(name)
    directory.save(tmp_path / "model", model)
    export(tmp_path / "model", tmp_path / "pt2", "pt2")
    program = torch.export.load(tmp_path / "pt2" / "model.pt2").module()
    (graph,) = graphs(model).values()
    used = {size for entry in graph.inputs for size in entry.shape}
    more = [{**SIZES[0], "tokens": tokens, "past + tokens": tokens} for tokens in (2, 3) if "tokens" in used]
    for sizes in (*SIZES, *more):
        tensors = [entry.example(sizes) for entry in graph.inputs]
        with torch.no_grad():
            for found, expected in zip(program(*tensors), graph(*tensors), strict=True):
                torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_an_onnx_directory_has_the_files_around_the_weights(tmp_path: Path) -> None:
    model = tiny("vit")
    directory.save(tmp_path / "model", model, preprocessing={"image_mean": [0.5], "image_std": [0.5]})
    export(tmp_path / "model", tmp_path / "onnx", "onnx")
    assert sorted(file.name for file in (tmp_path / "onnx").iterdir()) == [
        "config.json", "model.onnx", "preprocessor_config.json"
    ]  # fmt: skip
    assert json.loads((tmp_path / "onnx" / "config.json").read_text())["model_type"] == "manyheads-vit"


def test_a_model_without_a_graph_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    model = build(preset("universal/tiny", source_vocab=60, target_vocab=60))
    directory.save(tmp_path / "model", model)
    for format in ("onnx", "pt2"):
        with pytest.raises(UserError, match="a Universal cannot be exported as a graph: expected a BERT"):
            export(tmp_path / "model", tmp_path / "out", format)
    assert [entry.name for entry in tmp_path.iterdir()] == ["model"]
