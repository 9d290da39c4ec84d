"""Explanations equal Captum's results, and the published formulas computed with NumPy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from manyheads import directory
from manyheads.analysis.explanations import explain
from manyheads.analysis.explanations.gradients import Score
from manyheads.analysis.explanations.relevance import attention_gradients
from manyheads.analysis.readout import Names, Readout
from manyheads.core.editing import edit
from manyheads.core.recording import record
from manyheads.data.text.tokenizers import train_wordpiece
from manyheads.tasks.loading import load
from tests.support import services

LABELS = ("bad", "good", "neutral")
TEXT = "the cat sat on the mat"
TEXTS = ("bert", "masked", "gpt", "lstm", "conv1d", "conv2d", "textbook", "corrected")
STEPS = 200
IMAGES = ("vit", "deit", "resnet", "nonlocal", "bit")


def small(path: Path, name: str, size: int = 32, **settings: Any) -> Any:
    """Return a small image classifier with random weights."""
    model = services.drawn(name, 0.02, labels=LABELS, channels=3, image_size=size, **settings)
    sizes = {"size": {"height": size, "width": size}, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    directory.save(path, model, preprocessing=sizes)
    return load(path)


def classifier(path: Path, name: str, **settings: Any) -> Any:
    """Return a small text classifier with random weights."""
    tokenizer = train_wordpiece(services.CORPUS, 54)
    model = services.drawn(name, 0.3, vocab=tokenizer.get_vocab_size(), labels=LABELS, **settings)
    directory.save(path, model, tokenizer)
    return load(path)


@pytest.fixture(scope="module")
def readouts(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Readout]:
    """Return a function from a name in TEXTS or IMAGES to the readout of a small model."""
    folder = tmp_path_factory.mktemp("models")
    pixels = np.random.default_rng(0).integers(0, 255, (32, 32, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(folder / "noise.png")
    widths: dict[str, Any] = {"width": 16, "heads": 2, "layers": 3, "feed_forward": 32, "patch": 8}
    stages: dict[str, Any] = {"depths": (1, 1), "widths": (8, 16), "stem_width": 8}
    make: dict[str, Callable[[Path], Any]] = {
        "bert": lambda path: load(services.bert(path, head="sequence", labels=LABELS)),
        "masked": lambda path: load(services.bert(path, head="masked_lm")),
        "gpt": lambda path: load(services.language_model(path)),
        "lstm": lambda path: classifier(path, "sequence-baseline/lstm"),
        "conv1d": lambda path: classifier(path, "sequence-baseline/conv1d"),
        "conv2d": lambda path: classifier(path, "sequence-baseline/conv2d"),
        "textbook": lambda path: classifier(path, "text-classifier/textbook"),
        "corrected": lambda path: classifier(path, "text-classifier/corrected"),
        "vit": lambda path: small(path, "vit/ti16", **widths),
        "deit": lambda path: small(path, "vit/ti16", distilled=True, **widths),
        "resnet": lambda path: small(path, "resnet/18-small", **stages),
        "nonlocal": lambda path: small(path, "nonlocal/18-small", stages=(2,), every=1, **stages),
        "bit": lambda path: small(path, "bit/50x1", **{**stages, "widths": (16, 32), "groups": 4}),
    }

    def of(name: str) -> Readout:
        predictor = load(folder / name) if (folder / name).exists() else make[name](folder / name)
        given = folder / "noise.png" if name in IMAGES else TEXT.replace("cat", "[MASK]" if name == "masked" else "cat")
        found: Readout = predictor.readout(given)
        return replace(found, names=Names.of_labels(range(found.logits().shape[1])))

    return of


def function(readout: Readout) -> tuple[Callable[[Tensor], Tensor], Tensor, Tensor]:
    """Return the logits as a function of embeddings or pixels, the embeddings or pixels, and the baseline."""
    model: Any = readout.model
    if readout.picture is not None:
        pixels = readout.inputs[0]
        assert pixels is not None
        return readout.logits, pixels, torch.zeros_like(pixels)
    whole: list[Tensor] = []
    handle = model.embedding.register_forward_hook(lambda module, given, output: whole.append(output.detach()))
    readout.logits()
    handle.remove()

    def logits(embedded: Tensor) -> Tensor:
        handle = model.embedding.register_forward_hook(lambda module, given, output: embedded)
        try:
            return readout.logits(*readout.repeated(len(embedded)))
        finally:
            handle.remove()

    assert readout.side is not None
    empty = torch.zeros_like(whole[0][0, 0]) if model.pad is None else model.embedding.weight[model.pad].detach()
    special = [at for at, name in enumerate(readout.side.tokens) if name in ("[CLS]", "[SEP]", "[MASK]")]
    baseline = empty.expand_as(whole[0]).clone()
    baseline[:, special] = whole[0][:, special]
    return logits, whole[0], baseline


def summed(readout: Readout, values: Tensor) -> Any:
    if readout.picture is not None:
        return values[0].sum(0).detach().numpy()
    assert readout.side is not None
    return values[0].sum(-1)[: len(readout.side)].detach().numpy()


def close(found: Any, expected: Any) -> None:
    assert np.abs(expected).max() > 0
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * max(1.0, float(np.abs(expected).max())))


def other(readout: Readout) -> tuple[int, dict[str, Any]]:
    """Return the index of the second most likely output, and the arguments of `explain` for it."""
    index = int(readout.logits()[0].argsort()[-2])
    return index, {"target": str(index)}


@pytest.mark.parametrize("name", [*TEXTS, *IMAGES])
def test_gradients_of_the_input_equal_captum(name: str, readouts: Callable[[str], Readout]) -> None:
    attr = pytest.importorskip("captum.attr", reason="captum is not installed")
    readout = readouts(name)
    (index, asked), (logits, whole, baseline) = other(readout), function(readout)
    ours = explain(readout, **asked, method="integrated-gradients", steps=20)
    theirs = attr.IntegratedGradients(logits).attribute(whole, baseline, target=index, n_steps=20)
    close(ours.values, summed(readout, theirs))
    ours = explain(readout, **asked, method="input-x-gradient")
    close(ours.values, summed(readout, attr.InputXGradient(logits).attribute(whole, target=index)))


@pytest.mark.parametrize("name", ["resnet", "nonlocal", "bit"])
def test_grad_cam_equals_captum(name: str, readouts: Callable[[str], Readout]) -> None:
    attr = pytest.importorskip("captum.attr", reason="captum is not installed")
    readout = readouts(name)
    model: Any = readout.model
    index, asked = other(readout)
    theirs = attr.LayerGradCam(model, model.stages[-1].blocks[-1] if model.top is None else model.top)
    theirs = theirs.attribute(readout.inputs[0], target=index, relu_attributions=True)
    close(explain(readout, **asked, method="grad-cam").values, theirs[0, 0].detach().numpy())


@pytest.mark.parametrize("name", ["bert", "gpt", "lstm", "textbook", "vit", "resnet"])
def test_integrated_gradients_equal_a_riemann_sum(name: str, readouts: Callable[[str], Readout]) -> None:
    readout = readouts(name)
    (index, asked), (logits, whole, baseline) = other(readout), function(readout)
    points = (torch.arange(STEPS) + 0.5).view(-1, *[1] * (whole.dim() - 1)) / STEPS
    at = (baseline + points * (whole - baseline)).requires_grad_()
    (gradients,) = torch.autograd.grad(logits(at)[:, index].sum(), at)
    ours = explain(readout, **asked, method="integrated-gradients", steps=STEPS)
    expected = summed(readout, gradients.mean(0) * (whole - baseline))
    np.testing.assert_allclose(ours.values, expected, atol=1e-2 * np.abs(expected).max())
    with torch.no_grad():
        difference = float((logits(whole) - logits(baseline))[0, index])
    assert ours.difference == pytest.approx(difference, rel=1e-4, abs=1e-4)
    assert ours.error == pytest.approx(abs(ours.values.sum() - difference), abs=1e-4)
    assert ours.error is not None
    assert ours.error < 0.01 * abs(difference) + 1e-3


@pytest.mark.parametrize("name", ["bert", "masked", "gpt", "lstm", "conv1d"])
def test_input_times_gradient_is_the_effect_of_scaling_an_embedding(
    name: str, readouts: Callable[[str], Readout]
) -> None:
    """By central differences in float64, with the embedding of one token scaled."""
    readout = readouts(name)
    readout.model.double()
    (index, asked), (logits, whole, _) = other(readout), function(readout)
    effects = []
    with torch.no_grad():
        for token in range(whole.shape[1]):
            scaled = []
            for factor in (1 + 1e-5, 1 - 1e-5):
                changed = whole.clone()
                changed[:, token] *= factor
                scaled.append(float(logits(changed)[0, index]))
            effects.append((scaled[0] - scaled[1]) / 2e-5)
    close(explain(readout, **asked, method="input-x-gradient").values, np.array(effects))


@pytest.mark.parametrize("name", ["resnet", "nonlocal", "bit"])
def test_grad_cam_of_a_mean_and_a_linear_layer_is_cam(name: str, readouts: Callable[[str], Readout]) -> None:
    """For such a head, the mean gradient of channel k is weight_k / (Y * X), as in Zhou 2016."""
    readout = readouts(name)
    index, asked = other(readout)
    model: Any = readout.model
    with torch.no_grad():
        x = model.stem(readout.inputs[0])
        for stage in model.stages:
            for block in stage.blocks:
                x = block(x)
        x = (x if model.top is None else model.top(x))[0].numpy()
    weights = model.classifier.weight[index].detach().numpy()
    expected = np.maximum(np.einsum("k,kyx->yx", weights, x) / x[0].size, 0)
    close(explain(readout, **asked, method="grad-cam").values, expected)


def test_grad_cam_of_a_vit_uses_the_patches_before_the_last_block(readouts: Callable[[str], Readout]) -> None:
    readout = readouts("deit")
    index, asked = other(readout)
    model: Any = readout.model
    states = model.all_states(readout.inputs[0])[-2].detach().requires_grad_()
    encoded = model.encoder.norm(model.encoder.blocks[-1](states))
    logits = model.fuse(model.head(encoded[:, 0]), model.distillation_head(encoded[:, 1]))
    (gradient,) = torch.autograd.grad(logits[0, index], states)
    patches, slopes = states[0, 2:].detach().numpy(), gradient[0, 2:].numpy()
    expected = np.maximum(patches @ slopes.mean(0), 0).reshape(4, 4)
    close(explain(readout, **asked, method="grad-cam").values, expected)


def reader_rows(name: str, readout: Readout) -> list[int]:
    """Return the tokens that the head of the model reads."""
    assert readout.side is not None
    tokens = readout.side.tokens
    if name == "masked":
        return [tokens.index("[MASK]")]
    return {"bert": [0], "gpt": [len(tokens) - 1], "vit": [0]}[name]


@pytest.mark.parametrize("name", ["bert", "masked", "gpt", "vit"])
def test_rollout_is_a_product_of_maps(name: str, readouts: Callable[[str], Readout]) -> None:
    readout = readouts(name)
    with torch.no_grad(), record(readout.model) as recorded:
        readout.logits()
    product = np.eye(len(readout.side or ()))
    for (weights,) in recorded.values():
        product = (0.5 * weights[0].mean(0).numpy() + 0.5 * np.eye(len(product))) @ product
    expected = product[reader_rows(name, readout)[0]]
    ours = explain(readout, method="rollout").values
    close(ours, expected[-16:].reshape(4, 4) if name == "vit" else expected)
    assert name == "vit" or ours.sum() == pytest.approx(1)


@pytest.mark.parametrize("name", ["bert", "masked", "gpt"])
def test_relevance_follows_its_equations(name: str, readouts: Callable[[str], Readout]) -> None:
    """Equations 5 and 6 of Chefer 2021, with gradients by central differences in float64."""
    readout = readouts(name)
    readout.model.double()
    index, asked = other(readout)
    with torch.no_grad(), record(readout.model) as recorded:
        readout.logits()
    total = np.eye(len(readout.side or ()))
    for layer, (weights,) in recorded.items():
        slopes = np.zeros(weights.shape[1:])
        for head, query, key in np.ndindex(slopes.shape):
            scores = []
            for step in (1e-5, -1e-5):

                def moved(part: Tensor, at: tuple[int, int] = (query, key), step: float = step) -> Tensor:
                    part = part.clone()
                    part[0, 0, *at] += step
                    return part

                with torch.no_grad(), edit(readout.model) as change:
                    change.map(layer, [head], moved)
                    scores.append(float(readout.logits()[0, index]))
            slopes[head, query, key] = (scores[0] - scores[1]) / 2e-5
        total = total + np.maximum(weights[0].numpy() * slopes, 0).mean(0) @ total
    row = reader_rows(name, readout)[0]
    close(explain(readout, **asked, method="relevance").values, total[row] - np.eye(len(total))[row])


def test_several_tokens_that_the_head_reads_are_averaged(readouts: Callable[[str], Readout]) -> None:
    readout = readouts("corrected")
    _, _, readers = attention_gradients(Score(readout, 1))
    assert readers.sum() == pytest.approx(1)
    assert int((readers > 0).sum()) > 1
    with torch.no_grad(), record(readout.model) as recorded:
        readout.logits()
    (weights,) = next(iter(recorded.values()))
    mixed = 0.5 * weights[0].mean(0).numpy() + 0.5 * np.eye(weights.shape[-1])
    assert len(recorded) == 1
    close(explain(readout, target="1", method="rollout").values, (readers.numpy() @ mixed)[: len(readout.side or ())])
