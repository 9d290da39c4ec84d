"""`manyheads patch` and the methods `patch` and `logit_attribution`: tables, files, other models, and errors."""

import json
from pathlib import Path

import numpy as np
import pytest

import manyheads
from manyheads import cli, directory
from manyheads.models.presets import build, preset
from tests.support import services

CLEAN, CORRUPT = "the cat sat on the", "the dog sat on the"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    services.language_model(folder / "gpt")
    services.bert(folder / "bert", head="masked_lm")
    services.bert(folder / "labels", head="sequence", labels=("negative", "positive"))
    services.translator(folder / "translator")
    loaded = directory.load(folder / "labels")
    sizes = {"vocab": loaded.model.config.vocab, "labels": ("negative", "positive")}
    for kind in ("lstm", "conv1d"):
        directory.save(folder / kind, build(preset(f"sequence-baseline/{kind}", **sizes)), loaded.tokenizer)
    return folder


def test_the_table_shows_the_largest_effects(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["patch", str(runs / "gpt"), CLEAN, CORRUPT, "--target", " cat", "--against", " dog"]
    assert cli.main([*words, "--out", str(tmp_path / "effects.npz")]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(" ")
    assert "residual stream  embeddings  1 cat" in shown
    assert "logit of ' cat' minus that of ' dog':" in shown
    assert "correlation with attribution patching: residual stream" in shown
    assert len(shown.splitlines()) < 30
    assert cli.main([*words, "--json", "--out", str(tmp_path / "effects.png")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [shown["title"] for shown in found["maps"]] == ["residual stream", "attention", "feed-forward", "heads"]
    assert [shown["title"] for shown in found["attribution"]] == [*found["correlations"]]
    with np.load(tmp_path / "effects.npz") as arrays:
        np.testing.assert_allclose(arrays["residual_stream"], found["maps"][0]["values"])
        assert arrays["residual_stream.rows"].tolist() == ["embeddings", "layer 0", "layer 1"]
    assert (tmp_path / "effects.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("name", "clean", "corrupt"),
    [("bert", "the [MASK] sat on the cat", "the [MASK] sat on the dog"), ("labels", CLEAN, CORRUPT)],
)
def test_other_models_are_patched(runs: Path, name: str, clean: str, corrupt: str) -> None:
    predictor = manyheads.load(runs / name)
    found = predictor.patch(clean, corrupt)
    at = clean.split().index("cat") + 1  # after [CLS]
    assert found["residual stream"][0, at] == pytest.approx(1, abs=1e-4)
    assert found["heads"].shape == (2, 2)
    with pytest.raises(ValueError, match="norm after each sublayer"):
        predictor.logit_attribution(clean)


@pytest.mark.parametrize(
    ("name", "words", "message"),
    [
        (
            "gpt",
            [CLEAN, "the cat"],
            "the clean input has 5 tokens and the corrupt input 2, expected equal numbers: the|cat|",
        ),
        (
            "gpt",
            [CLEAN, CORRUPT, "--target", "zebra"],
            "the target 'zebra' is not one token of the vocabulary: found z e",
        ),
        ("gpt", [CLEAN, CORRUPT, "--target", " cat", "--against", " cat"], "both ' cat': name two different outputs"),
        (
            "gpt",
            [CLEAN, CLEAN, "--target", " cat", "--against", " dog"],
            "for both inputs: expected inputs that change it",
        ),
        ("gpt", [CLEAN, ""], "the text is empty after tokenization"),
        ("gpt", [CLEAN, CORRUPT, "--out", "effects.gif"], "--out effects.gif: expected a name that ends in"),
        ("bert", [CLEAN, CORRUPT], "the text has no [MASK]"),
        (
            "bert",
            ["the [MASK] sat on the dog", "the cat sat on the [MASK]"],
            "predicts token 2 of the clean input and token 6 of the corrupt input: expected the same position",
        ),
        ("labels", [CLEAN, CORRUPT, "--target", "maybe"], "the model has no label 'maybe'"),
        ("lstm", [CLEAN, CORRUPT], "SequenceBaseline has no residual stream to analyze"),
        ("translator", [CLEAN, CORRUPT], "this model does not support patch"),
    ],
)
def test_bad_input_is_reported(
    runs: Path, name: str, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["patch", str(runs / name), *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1


def test_inputs_that_hardly_change_the_prediction_are_warned_about(
    runs: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    predictor = manyheads.load(runs / "gpt")
    monkeypatch.setattr("manyheads.analysis.contrast.SMALL_DIFFERENCE", 1e-3)
    found = predictor.patch(CLEAN, CORRUPT, target=" cat", against=" dog")
    assert abs(found.clean - found.corrupt) > 1e-3
    assert not caplog.messages
    monkeypatch.setattr("manyheads.analysis.contrast.SMALL_DIFFERENCE", 1.0)
    predictor.patch(CLEAN, CORRUPT, target=" cat", against=" dog")
    assert f"hardly changes, from {found.corrupt:.4f} to {found.clean:.4f}" in caplog.text


def test_patching_and_attribution_compute_in_float32(runs: Path) -> None:
    plain, half = manyheads.load(runs / "gpt"), manyheads.load(runs / "gpt", precision="bf16")
    words = {"target": " cat", "against": " dog"}
    np.testing.assert_array_equal(
        half.patch(CLEAN, CORRUPT, **words)["heads"], plain.patch(CLEAN, CORRUPT, **words)["heads"]
    )
    assert half.logit_attribution(CLEAN).value == plain.logit_attribution(CLEAN).value
