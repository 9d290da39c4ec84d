"""Patching, attribution patching, path patching and logit attribution, against runs of the whole model and formulas."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from manyheads.analysis.attribution_patching import attribution_patching
from manyheads.analysis.contrast import HEADS, PLACES, RESIDUAL, Activations, Contrast
from manyheads.analysis.logit_attribution import attribute_logits
from manyheads.analysis.maps.sides import Side
from manyheads.analysis.patching import patch, patching
from manyheads.analysis.path_patching import path_patching
from manyheads.analysis.readout import Names, Readout
from manyheads.core.block import Block
from manyheads.core.editing import edit
from manyheads.models.bert import Bert
from manyheads.models.gpt import GPT
from manyheads.models.presets import preset
from manyheads.models.text_classifier import TextClassifier
from manyheads.models.vit import ViT
from tests.support.induction import induction_gpt

V = 13
TEXT: dict[str, Any] = {"vocab": V, "width": 12, "layers": 3, "heads": 3, "max_positions": 8}
CLEAN, CORRUPT = [1, 5, 2, 7, 3, 9], [1, 6, 2, 4, 3, 9]
NAMES = Names(str, int)


def randomized(model: Any) -> Any:
    """The model in float64 and eval mode, with weights far from zero."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.4)
    return model.double().eval()


def texts(model: Any, clean: list[int] = CLEAN, corrupt: list[int] = CORRUPT, *, labels: bool = False) -> list[Readout]:
    """The predictions of the last token for two texts, or of the label."""
    return [
        Readout(
            model, (torch.tensor([ids]),), (lambda logits: logits) if labels else (lambda logits: logits[:, -1]), NAMES,
            None if labels else len(ids) - 1, Side.positions(len(ids)), "model", " ".join(map(str, ids)),
        )
        for ids in (clean, corrupt)
    ]  # fmt: skip


def images() -> list[Readout]:
    sizes = {"image_size": 4, "patch": 2, "channels": 1, "labels": tuple("abc"), "layer_scale": 0.5, "feed_forward": 20}
    model = randomized(ViT(preset("vit/2-8", **{**sizes, "width": 12, "layers": 2, "heads": 3})))
    torch.manual_seed(2)
    inputs = torch.randn(2, 1, 1, 4, 4, dtype=torch.double)
    side = Side.patches((2, 2), ("[class]",))
    return [Readout(model, (pixels,), lambda logits: logits, NAMES, None, side, "vit", "image") for pixels in inputs]


def bert(**settings: Any) -> Bert:
    return Bert(preset("bert/tiny", vocab=V, width=12, layers=2, heads=3, feed_forward=20, max_positions=8, **settings))


PAIRS: dict[str, list[Readout]] = {
    "gpt": texts(randomized(GPT(preset("gpt2/nano", **TEXT)))),
    "gpt, post-norm": texts(randomized(GPT(preset("gpt2/nano", **TEXT, norm="post")))),
    "gpt, windows": texts(randomized(GPT(preset("gpt2/nano", **TEXT, window=2)))),
    "gpt, attention only": texts(randomized(GPT(preset("gpt/attention-only", **TEXT)))),
    "gpt, labels": texts(
        randomized(GPT(preset("gpt2/nano", **TEXT, head="sequence", labels=("a", "b"), pad=0))), labels=True
    ),
    "bert": texts(randomized(bert(head="masked_lm"))),
    "bert, labels": texts(randomized(bert(head="sequence", labels=("a", "b", "c"))), labels=True),
    "text classifier": texts(
        randomized(TextClassifier(preset("text-classifier/textbook", vocab=V, width=12, heads=3, labels=("a", "b")))),
        labels=True,
    ),
    "vit": images(),
}


def opposed(readouts: list[Readout]) -> Contrast:
    """Outputs that the two inputs change, whichever are the most likely."""
    change = readouts[0].logits()[0] - readouts[1].logits()[0]
    clean, corrupt = readouts
    return Contrast.of(clean, corrupt, str(int(change.argmax())), str(int(change.argmin())))


@pytest.mark.parametrize("readouts", PAIRS.values(), ids=list(PAIRS))
def test_patches_equal_whole_runs(readouts: list[Readout]) -> None:
    contrast = opposed(readouts)
    clean, corrupt = readouts
    activations = Activations.of(clean)
    with torch.no_grad():
        for panel in patching(contrast):
            layers = activations[panel.title]
            assert panel.values.shape == (len(layers), next(iter(layers.values())).shape[1])
            assert (len(panel.rows), len(panel.columns)) == panel.values.shape
            for row, (layer, new) in enumerate(layers.items()):
                for at in range(new.shape[1]):
                    with edit(clean.model) as change:
                        place = PLACES[panel.title]
                        where = {"heads" if panel.title == HEADS else "positions": [at]}
                        change.replace(place, layer, new[:, [at]], **where)
                        effect = float(contrast.effect(corrupt.logits()))
                    assert panel.values[row, at] == pytest.approx(effect, abs=1e-9), (panel.title, layer, at)


def test_all_patches_at_once_restore_the_clean_run() -> None:
    contrast = opposed(PAIRS["gpt"])
    panels = {panel.title: panel for panel in patching(contrast)}
    assert panels[RESIDUAL].values[-1, -1] == pytest.approx(1)  # last state of the last layer
    assert panels[RESIDUAL].values[-1, :-1] == pytest.approx(0)
    assert panels[RESIDUAL].rows == ("embeddings", "layer 0", "layer 1", "layer 2")
    assert panels[RESIDUAL].columns[1] == "1 1"
    assert panels[HEADS].columns == ("head 0", "head 1", "head 2")
    assert float(contrast.effect(contrast.clean.logits())) == pytest.approx(1)


@pytest.mark.parametrize("readouts", PAIRS.values(), ids=list(PAIRS))
def test_attribution_patching_is_the_derivative_of_patching(readouts: list[Readout]) -> None:
    contrast, step = opposed(readouts), 1e-6
    clean, corrupt = readouts
    new, old = Activations.of(clean), Activations.of(corrupt)
    with torch.no_grad():
        for panel in attribution_patching(contrast):
            for row, layer in enumerate(new[panel.title]):
                for at in range(panel.values.shape[1]):
                    moved = old[panel.title][layer].clone()
                    moved[:, at] += step * (new[panel.title][layer] - moved)[:, at]
                    with edit(clean.model) as change:
                        change.replace(PLACES[panel.title], layer, moved)
                        slope = float(contrast.effect(corrupt.logits())) / step
                    assert panel.values[row, at] == pytest.approx(slope, abs=2e-5, rel=1e-3), (panel.title, layer, at)
    assert not any(parameter.grad is not None for parameter in clean.model.parameters())


def test_patching_finds_the_known_heads() -> None:
    model = induction_gpt().double()
    clean, corrupt = texts(model, [7, 3, 1, 4, 0, 5, 3], [7, 3, 2, 4, 0, 5, 3])  # 3 is followed by 1, or by 2
    found = patch(clean, corrupt)
    assert found.title.startswith("logit of '1' minus that of '2'")
    np.testing.assert_allclose(found[HEADS], [[0, 0], [1, 0]], atol=1e-3)
    np.testing.assert_allclose(found["attention"][1], [0, 0, 0, 0, 0, 0, 1], atol=1e-3)
    np.testing.assert_allclose(found[RESIDUAL], np.eye(7)[[2, 2, 6]], atol=1e-3)
    assert min(found.correlations.values()) > 0.99
    np.testing.assert_allclose(path_patching(clean, corrupt)[HEADS], [[0, 0], [1, 0]], atol=1e-3)
    # If the first token differs, the induction head attends elsewhere: its keys come from the previous-token head.
    clean, corrupt = texts(model, [7, 3, 1, 4, 0, 5, 3], [7, 2, 1, 4, 0, 5, 3])
    for into, effect in (("keys", 1), ("queries", 0), ("values", 0)):
        found_path = path_patching(clean, corrupt, [(1, 0)], into=into, target="1", against="4")  # type: ignore[arg-type]
        np.testing.assert_allclose(found_path[HEADS], [[effect, 0], [0, 0]], atol=1e-2)


def test_direct_paths_equal_the_formula() -> None:
    """Without feed-forward networks, a sender changes the last state by its own change times W_O."""
    readouts = PAIRS["gpt, attention only"]
    contrast = opposed(readouts)
    model: Any = readouts[0].model
    target, against = str(contrast.difference.target), str(contrast.difference.against)
    found = path_patching(contrast.clean, contrast.corrupt, target=target, against=against)
    new, old = (Activations.of(readout) for readout in readouts)
    last = [*old[RESIDUAL].values()][-1]
    for layer, (name, heads) in enumerate(old[HEADS].items()):
        weight = model.get_submodule(name).output.weight.unflatten(1, (3, 4))
        for head in range(3):
            change = (new[HEADS][name] - heads)[0, head] @ weight[:, head].T
            logits = model.project(model.decoder.norm(last + change))[:, -1]
            assert found[HEADS][layer, head] == pytest.approx(float(contrast.effect(logits)))


@pytest.mark.parametrize("name", ["gpt", "gpt, windows", "gpt, attention only", "gpt, labels", "vit"])
@pytest.mark.parametrize("against", [None, "0"])
def test_contributions_add_up_to_the_logit(name: str, against: str | None) -> None:
    readout = PAIRS[name][0]
    found = attribute_logits(readout, "1", against)
    logits = readout.logits()[0]
    assert found.value == pytest.approx(float(logits[1] - (0 if against is None else logits[0])))
    assert found["layers"].sum() + found["rest"].sum() == pytest.approx(found.value)
    np.testing.assert_allclose(found["heads"].sum(1), found["layers"][:, 0])
    np.testing.assert_allclose(found["source tokens"].sum(1), found["heads"][:, :-1].sum(1))
    unscaled = attribute_logits(readout, "1", against, scale=False)
    assert unscaled["layers"].shape == found["layers"].shape
    assert unscaled["rest"][0, 1:] == pytest.approx(found["rest"][0, 1:])


def test_contributions_equal_the_formula() -> None:
    """The formula of TransformerLens: each part, divided by the scale of the final norm, times a column of W_U."""
    readout = PAIRS["gpt"][0]
    model: Any = readout.model
    found = attribute_logits(readout, "2", "7")
    parts = Activations.of(readout)
    last = [*parts[RESIDUAL].values()][-1][0, -1]
    scale = (last.var(unbiased=False) + model.decoder.norm.eps).sqrt()
    column = model.decoder.norm.weight * (model.embedding.weight[2] - model.embedding.weight[7])

    def contribution(part: Tensor) -> float:
        return float((part - part.mean()) / scale @ column)

    for layer, block in enumerate(model.decoder.blocks):
        assert isinstance(block, Block)
        name = f"decoder.blocks.{layer}"
        for head in range(3):
            output = (
                parts[HEADS][f"{name}.attention"][0, head, -1] @ block.attention.output.weight[:, 4 * head :][:, :4].T
            )
            assert found["heads"][layer, head] == pytest.approx(contribution(output))
        output = parts["feed-forward"][f"{name}.feed_forward"][0, -1]
        assert found["layers"][layer, 1] == pytest.approx(contribution(output))
    assert found["rest"][0, 0] == pytest.approx(contribution(next(iter(parts[RESIDUAL].values()))[0, -1]))
    normalized = F.layer_norm(last, (12,), model.decoder.norm.weight, model.decoder.norm.bias, model.decoder.norm.eps)
    assert found.value == pytest.approx(float(normalized @ (model.embedding.weight[2] - model.embedding.weight[7])))


@pytest.mark.parametrize(
    ("name", "message"),
    [("gpt, post-norm", "norm after each sublayer"), ("bert", "norm after each sublayer")],
)
def test_models_without_a_sum_are_reported(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        attribute_logits(PAIRS[name][0])


def test_bad_contrasts_are_reported() -> None:
    clean, corrupt = PAIRS["gpt"]
    (short, _) = texts(clean.model, CLEAN[:-1])
    with pytest.raises(
        ValueError, match=r"clean input has 6 tokens and the corrupt input 5.*: 0\|1\|2\|3\|4\|5 and 0\|1"
    ):
        patch(clean, short)
    with pytest.raises(ValueError, match=r"is -?[\d.]+ for both inputs"):
        patch(clean, clean, "1", "2")
    with pytest.raises(ValueError, match="target and against are both '1'"):
        patch(clean, corrupt, "1", "1")
    broken = replace(clean, select=lambda logits: clean.select(logits) * torch.nan)
    with pytest.raises(ValueError, match="is nan for both inputs"):
        patch(broken, replace(corrupt, select=broken.select), "1", "2")
    with pytest.raises(ValueError, match="receiver \\(3, 0\\) does not exist"):
        path_patching(clean, corrupt, [(3, 0)], target="1", against="2")
