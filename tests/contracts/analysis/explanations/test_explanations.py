"""Explanations find the part of an input that decides, depend on the weights, and are refused if they do not apply."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from manyheads import cli, directory
from manyheads.analysis.explanations import METHODS, Explanation, explain
from manyheads.analysis.heat_maps import Panel
from manyheads.analysis.maps.sides import Side
from manyheads.analysis.readout import Readout
from manyheads.data.text.tokenizers import train_wordpiece
from manyheads.models.bert_features import BertFeatures, BertFeaturesConfig
from manyheads.models.presets import build, preset
from manyheads.tasks.loading import load
from tests.support import services

WORDS = ["cat", "dog", "mat", "sat", "on", "and", "the"]
SIDE, PATCH = 8, 2
SMALL: dict[str, Any] = {"image_size": SIDE, "channels": 1, "labels": ("nothing", "spot")}


def text_classifier(path: Path, preset_name: str, **settings: Any) -> Any:
    """Train a classifier whose label is "pet" if the text contains the word "cat", and return its predictor."""
    torch.manual_seed(0)
    tokenizer = train_wordpiece([" ".join(WORDS)] * 5, 60)
    words = torch.tensor([tokenizer.token_to_id(word) for word in WORDS])
    model: Any = build(preset(preset_name, vocab=tokenizer.get_vocab_size(), labels=("none", "pet", "x"), **settings))
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(200):
        chosen, has_cat = torch.randint(1, len(WORDS), (32, 7)), torch.randint(0, 2, (32,))
        chosen[has_cat == 1, torch.randint(0, 7, (32,))[has_cat == 1]] = 0
        start, end = (torch.full((32, 1), tokenizer.get_vocab()[name]) for name in ("[CLS]", "[SEP]"))
        tokens = torch.cat([start, words[chosen], end], 1)
        loss = F.cross_entropy(model(tokens, torch.full((32,), 9)), has_cat)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert float(loss) < 0.1
    directory.save(path, model.eval(), tokenizer)
    return load(path)


def spots(count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return images of noise, every second with a bright patch, their labels, and the places of the patches."""
    images, labels = 0.2 * torch.randn(count, 1, SIDE, SIDE), torch.arange(count) % 2
    places = torch.randint(0, SIDE // PATCH, (count, 2))
    for image, label, (row, column) in zip(images, labels, (places * PATCH).tolist(), strict=True):
        image[0, row : row + PATCH, column : column + PATCH] += 1.5 * label
    return images, labels, places


def image_classifier(path: Path, preset_name: str, **settings: Any) -> Any:
    """Train a classifier that finds a bright patch in an image, and return its predictor."""
    torch.manual_seed(0)
    model: Any = build(preset(preset_name, **SMALL, **settings))
    optimizer = torch.optim.Adam(model.parameters(), 0.003)
    for _ in range(100):
        images, labels, _ = spots(64)
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert float(loss) < 0.2
    sizes = {"size": {"height": SIDE, "width": SIDE}, "image_mean": [0.5], "image_std": [0.5]}
    directory.save(path, model.eval(), preprocessing=sizes)
    return load(path)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    """Return a function from a name to the predictor of a trained model."""
    folder, made = tmp_path_factory.mktemp("trained"), dict[str, Any]()
    make: dict[str, Callable[[Path], Any]] = {
        "bert": lambda path: text_classifier(
            path, "bert/tiny", head="sequence", width=16, layers=1, heads=2, feed_forward=32, max_positions=16,
        ),
        "lstm": lambda path: text_classifier(path, "sequence-baseline/lstm", width=16, hidden=16),
        "vit": lambda path: image_classifier(
            path, "vit/ti16", patch=PATCH, width=32, layers=2, heads=2, feed_forward=64, init="xavier",
        ),
        "resnet": lambda path: image_classifier(path, "resnet/18-small", depths=(1,), widths=(16,), stem_width=16),
    }  # fmt: skip

    def of(name: str) -> Any:
        if name not in made:
            made[name] = make[name](folder / name)
        return made[name]

    return of


@pytest.mark.parametrize(
    ("name", "method"),
    [("bert", "integrated-gradients"), ("bert", "relevance"), ("lstm", "integrated-gradients")],
)
def test_the_word_that_decides_has_the_largest_value(name: str, method: str, trained: Callable[[str], Any]) -> None:
    predictor = trained(name)
    for text in ("dog sat on the cat and mat", "cat and dog and mat on the", "mat and the cat on the mat"):
        found = predictor.explain(text, method=method)
        assert found.target == "pet"
        assert found.probability > 0.8
        assert found.side.tokens[int(np.argmax(found.values))] == "cat"


@pytest.mark.parametrize(
    ("name", "method"),
    [("vit", "relevance"), ("vit", "rollout"), ("vit", "integrated-gradients"), ("resnet", "grad-cam"),
     ("resnet", "integrated-gradients")],
)  # fmt: skip
def test_the_patch_that_decides_has_the_largest_value(name: str, method: str, trained: Callable[[str], Any]) -> None:
    predictor = trained(name)
    torch.manual_seed(1)
    images, _, places = spots(40)
    right = []
    for image, place in zip(images[1::2], places[1::2].tolist(), strict=True):
        readout = replace(predictor.readout(Image.new("L", (SIDE, SIDE))), inputs=(image[None],))
        found = explain(readout, target="spot", method=method)
        by = found.values.shape[0] * PATCH // SIDE
        patches = found.values.reshape(SIDE // PATCH, by, SIDE // PATCH, by).sum((1, 3))
        right.append(list(np.unravel_index(patches.argmax(), patches.shape)) == place)
    assert np.mean(right) >= 0.8


@pytest.mark.parametrize("method", ["integrated-gradients", "input-x-gradient", "relevance", "grad-cam"])
def test_random_weights_give_another_explanation(method: str, trained: Callable[[str], Any]) -> None:
    """The sanity check of Adebayo 2018: an explanation of an untrained model differs."""
    predictor = trained("vit")
    torch.manual_seed(2)
    untrained = build(predictor.model.config).eval()
    correlations = []
    for image in spots(20)[0][1::2]:
        readout = replace(predictor.readout(Image.new("L", (SIDE, SIDE))), inputs=(image[None],))
        values: Any = [
            explain(replace(readout, model=model), target="spot", method=method).values.ravel()
            for model in (predictor.model, untrained)
        ]
        correlations.append(np.corrcoef(values)[0, 1] if np.std(values[1]) else 0.0)
    assert abs(np.mean(correlations)) < 0.5


def test_values_of_two_labels_are_opposite(tmp_path: Path) -> None:
    """The textbook's classifier has one logit, so the other one is always zero."""
    tokenizer = train_wordpiece(services.CORPUS, 54)
    model = services.drawn("text-classifier/corrected", 0.3, vocab=tokenizer.get_vocab_size())
    directory.save(tmp_path / "m", model, tokenizer)
    predictor = load(tmp_path / "m")
    good, bad = (predictor.explain("the cat sat", target=label) for label in ("positive", "negative"))
    np.testing.assert_allclose(good.values, -bad.values, atol=1e-6)
    assert np.abs(good.values).max() > 0
    assert good.probability + bad.probability == pytest.approx(1)


def test_probabilities_follow_the_kind_of_target(trained: Callable[[str], Any]) -> None:
    readout = trained("bert").readout("the cat")
    logits = readout.logits()[0]
    probability = {kind: explain(replace(readout, kind=kind), target="x").probability
                   for kind in ("classes", "multi-label", "regression")}  # fmt: skip
    assert probability["classes"] == pytest.approx(float(logits.softmax(-1)[2]))
    assert probability["multi-label"] == pytest.approx(float(logits[2].sigmoid()))
    assert probability["regression"] is None


def test_an_explanation_leaves_no_trace_and_works_in_inference_mode(trained: Callable[[str], Any]) -> None:
    for name, given in (("bert", "the cat sat"), ("lstm", "the cat sat"), ("vit", Image.new("L", (SIDE, SIDE), 9))):
        predictor = trained(name)
        for method in METHODS:
            try:
                plain = predictor.explain(given, method=method)
            except ValueError:
                continue
            with torch.inference_mode():
                inside = predictor.explain(given, method=method)
            np.testing.assert_array_equal(plain.values, inside.values)
            predictor.model.train()  # Dropout would change the result.
            np.testing.assert_array_equal(plain.values, predictor.explain(given, method=method).values)
            assert predictor.model.training
            predictor.model.eval()
        assert all(parameter.grad is None for parameter in predictor.model.parameters())
        assert not any(module._forward_hooks or module._forward_pre_hooks for module in predictor.model.modules())


def test_a_mask_and_special_tokens_remain_in_the_baseline(tmp_path: Path) -> None:
    predictor = load(services.bert(tmp_path / "bert", head="masked_lm"))
    found = predictor.explain("the [MASK] sat [MASK]")
    names = found.side.tokens
    for at, name in enumerate(names):
        assert (found.values[at] == 0) == name.startswith("["), name


def test_what_cannot_be_explained_is_refused_in_one_line(trained: Callable[[str], Any], tmp_path: Path) -> None:
    bert, lstm, resnet = trained("bert"), trained("lstm"), trained("resnet")
    image = Image.new("L", (SIDE, SIDE))
    tokenizer = train_wordpiece(services.CORPUS, 54)
    config = BertFeaturesConfig(
        vocab=tokenizer.get_vocab_size(), width=16, layers=2, heads=2, read=1, hidden=4, max_positions=32,
        head="sequence", labels=("none", "pet"),
    )  # fmt: skip
    directory.save(tmp_path / "frozen", BertFeatures(config), tokenizer)
    readout: Readout = bert.readout("the cat")
    with torch.inference_mode():
        inferred = replace(readout, model=build(bert.model.config))
    broken = replace(readout, select=lambda logits: logits * torch.nan)
    compiled: Any = torch.compile(bert.model, backend="eager")
    without = replace(readout, model=torch.nn.Linear(1, 1), embedding=None)
    for run, message in (
        (
            lambda: lstm.explain("cat", method="rollout"),
            "rollout does not apply to .*: use integrated-gradients or in",
        ),
        (lambda: resnet.explain(image, method="relevance"), "relevance does not apply to .*: use grad-cam or integrat"),
        (lambda: bert.explain("cat", method="grad-cam"), "grad-cam does not apply to .*: use relevance or integrated"),
        (lambda: explain(without), "does not apply to .*: no method does, to a Linear"),
        (lambda: bert.explain("cat", target="pett"), "the model has no label 'pett': did you mean pet?"),
        (lambda: bert.explain("cat", method=""), " does not apply to .*: use relevance or integrated"),
        (lambda: bert.explain("cat", steps=0), "steps is 0: expected 1 to 10,000"),
        (lambda: bert.explain("cat", method="rollout", steps=5), "steps apply to integrated-gradients, but the method"),
        (lambda: lstm.explain("cat", "dog"), "this model reads single texts, not pairs"),
        (lambda: load(tmp_path / "frozen").explain("the cat"), "no gradient reaches the input, because the model is"),
        (lambda: explain(inferred), "was loaded in torch.inference_mode: load it outside"),
        (
            lambda: explain(replace(readout, model=compiled)),
            "compiled with torch.com",
        ),
        (lambda: explain(broken), "the model computes infinite or NaN values"),
    ):
        with pytest.raises(ValueError, match=message) as caught:
            run()
        assert "\n" not in str(caught.value)


def of_pixels() -> Explanation:
    values = np.zeros((70, 70))
    values[3, 69], values[0, 0] = -2, 1
    names = tuple(map(str, range(70)))
    picture = np.zeros((70, 70, 3), np.uint8)
    panel = Panel("integrated-gradients", names, names, values, picture)
    return Explanation("m", "a.png", "for 'spot'", (panel,), "integrated-gradients", "spot", 0.75, -1.5, None)


def test_pages_add_up_neighboring_pixels(tmp_path: Path) -> None:
    found = of_pixels()
    (shown,) = found.finding()["maps"]
    values = np.array(shown["values"])
    assert values.shape == (24, 24)
    assert (values[0, 0], values[1, 23], values.sum()) == (1, -2, -1)
    assert shown["cover"] == pytest.approx((72 / 70, 72 / 70))
    assert found.error == pytest.approx(0.5)
    assert found.rows(1) == [["row", "column", "value"], ["3", "69", "-2.0000"]]
    assert repr(found).endswith("of 'spot' (75.0%): sum -1, difference of scores -1.5")
    assert found.overlay().shape == (280, 280, 3)
    assert "<img src='data:image/png;base64," in found._repr_html_()
    for suffix in ("png", "html"):
        assert (found.page if suffix == "html" else found.draw)(tmp_path / f"x.{suffix}") == []
        assert (tmp_path / f"x.{suffix}").stat().st_size > 1000


def test_words_add_the_values_of_their_tokens(trained: Callable[[str], Any], tmp_path: Path) -> None:
    found = trained("bert").explain("the catdog <b>")
    words = found.words()
    assert "catdog" in words.side.tokens
    assert words.values.sum() == pytest.approx(found.values.sum())
    at = words.side.tokens.index("catdog")
    group = [index for index, word in enumerate(found.side.words) if word == words.side.words[at]]
    assert len(group) > 1
    assert words.values[at] == pytest.approx(found.values[group].sum())
    assert found.limits[0] == -found.limits[1]
    assert "<b>" not in found._repr_html_()
    assert str(found).splitlines()[:2] == [repr(found), "token\tvalue"]
    assert len(found.rows(2)) == 3
    assert found.draw(tmp_path / "words.svg") == []
    assert b"<svg" in (tmp_path / "words.svg").read_bytes()
    side = Side.positions(4000)
    panel = Panel("rollout", ("x",), side.tokens, np.ones((1, 4000)))
    long = Explanation("m", "t", "", (panel,), "rollout", "x", None, None, side)
    with pytest.raises(ValueError, match="more than 60 lines of a picture: shorten it"):
        long.draw(tmp_path / "long.png")


def test_the_command_prints_values_and_writes_files(
    trained: Callable[[str], Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        return cli.main(["explain", *map(str, arguments)]), *capsys.readouterr()

    path, text = trained("bert").path, "the cat sat"
    found = trained("bert").explain(text, target="none", steps=7)
    asked = (path, text, "--target", "none", "--steps", 7)
    status, out, error = run(*asked, "--out", tmp_path / "x.npz")
    assert status == 0
    assert error.startswith(f"warning: the values sum to {found.values.sum():.4g}, but the difference of scores is ")
    first, head, *rows = out.splitlines()
    assert (first, head.split()) == (repr(found), ["token", "value"])
    assert [row.split() for row in rows] == found.rows()[1:]
    np.testing.assert_allclose(np.load(tmp_path / "x.npz")["integrated-gradients"][0], found.values)
    status, out, _ = run(*asked, "--json", "--out", tmp_path / "x.html")
    document = json.loads(out)
    assert (document["target"], document["method"]) == ("none", "integrated-gradients")
    assert document["maps"][0]["columns"] == ["[CLS]", "the", "cat", "sat", "[SEP]"]
    assert document["error"] == pytest.approx(found.error)
    assert "Explanation" in (tmp_path / "x.html").read_text()
    Image.new("L", (SIDE, SIDE)).save(tmp_path / "x.png")
    for arguments, message in (
        ((path, text, "--out", "x.gif"), "expected a file that ends in .html, .png, .svg, .pdf, .npz"),
        ((trained("vit").path, tmp_path / "x.png", "--pair", "x"), "--pair applies to models that read pairs"),
        ((trained("vit").path, tmp_path / "x.png", "--out", tmp_path / "x.png"), "is an input: give another file"),
        ((path, text, "--method", "rolout"), "rolout does not apply to"),
        ((path, ""), "the text is empty after tokenization"),
        ((services.translator(tmp_path / "t"), "the cat"), "does not support explain: use it with"),
    ):
        status, out, error = run(*arguments)
        assert (status, out, error.count("\n")) == (2, "", 1), arguments
        assert message in error


def test_a_target_is_one_token_of_the_vocabulary(tmp_path: Path) -> None:
    gpt = load(services.language_model(tmp_path / "gpt"))
    with pytest.raises(ValueError, match="the target 'catdog mat' is not one token of the vocabulary"):
        gpt.explain("the cat", target="catdog mat")
    assert gpt.explain("the cat", target=" the").target == " the"
    single = gpt.explain("t", method="rollout")
    assert (single.values.tolist(), single.limits) == ([1.0], (0.0, 1.0))
    assert single.draw(tmp_path / "single.png") == []


def test_an_incomplete_sum_is_warned_about(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    gpt = load(services.language_model(tmp_path))
    found = gpt.explain("the cat sat on the", steps=1)
    assert found.error > 0.05 * abs(found.difference)
    assert "raise steps (--steps)" in caplog.text
    caplog.clear()
    found = gpt.explain("the cat sat on the", steps=1000)
    assert found.error < 0.05 * abs(found.difference)
    assert not caplog.messages
