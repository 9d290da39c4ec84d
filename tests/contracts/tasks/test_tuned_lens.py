"""Tuned lens: it begins as the logit lens, lowers the divergence on held-out text, and belongs to one model."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from manyheads import cli
from manyheads.analysis.lens import layer_states
from manyheads.tasks.loading import load
from tests.support import services

TEXTS = ["the cat sat on the mat, the dog sat on the cat", "the dog and the mat"] * 40


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tuned")
    services.language_model(folder / "gpt")
    services.bert(folder / "bert", head="masked_lm")
    services.translator(folder / "translator")
    (folder / "texts.txt").write_text("\n".join(TEXTS))
    return folder


@pytest.mark.parametrize("kind", ["gpt", "bert", "translator"])
def test_a_tuned_lens_is_closer_to_the_last_layer_on_held_out_text(folder: Path, kind: str) -> None:
    predictor = load(folder / kind)
    weights = {name: tensor.clone() for name, tensor in predictor.model.state_dict().items()}
    tuned = predictor.tune_lens(TEXTS, steps=100)
    plain, better = tuned.kl[:, :-1]
    assert (better < 0.8 * plain).all(), tuned.rows()
    assert tuned.kl[:, -1].tolist() == [0, 0]
    assert all(torch.equal(tensor, weights[name]) for name, tensor in predictor.model.state_dict().items())
    assert all(parameter.grad is None for parameter in predictor.model.parameters())
    text = "the dog sat on the mat"
    assert predictor.lens(text, tuned=tuned).kl[:-1].mean() < predictor.lens(text).kl[:-1].mean()


@torch.no_grad()
def test_the_translators_are_affine_maps_before_the_norm(folder: Path) -> None:
    predictor = load(folder / "gpt")
    tuned = predictor.tune_lens(TEXTS, steps=3)
    lens = predictor.lens("the cat", top=3, tuned=tuned)
    found = layer_states(
        predictor.model, "decoder", predictor.model.project, torch.tensor([predictor.encode("the cat")])
    )
    for layer, state in enumerate(found.states[:-1]):
        moved = state @ (torch.eye(16) + tuned.matrices[layer]) + tuned.biases[layer]
        p = found.logits(moved)[0].softmax(-1).topk(3).values
        np.testing.assert_allclose(lens.probabilities[layer], p, rtol=1e-4)
    np.testing.assert_array_equal(lens.probabilities[-1], predictor.lens("the cat", top=3).probabilities[-1])
    assert lens.tuned
    again = predictor.tune_lens(TEXTS, steps=3)
    assert torch.equal(again.matrices, tuned.matrices)


def shown(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    capsys.readouterr()
    status = cli.main(["lens", *map(str, arguments)])
    return status, *capsys.readouterr()


def test_the_command_trains_and_uses_a_tuned_lens(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = folder / "tuned.safetensors"
    status, out, error = shown(capsys, folder / "gpt", "--tune", folder / "texts.txt", "--out", file)
    assert (status, error) == (0, "")
    assert out.split()[:6] == ["KL", "(nats)", "logit", "lens", "tuned", "lens"]
    status, out, error = shown(capsys, folder / "gpt", "the cat", "--tuned", file)
    assert (status, error) == (0, "")
    assert out == shown(capsys, folder / "gpt", "the cat", "--tuned", file)[1]
    assert out != shown(capsys, folder / "gpt", "the cat")[1]


def test_wrong_files_are_reported_in_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gpt: Any = load(folder / "gpt")
    gpt.tune_lens(TEXTS, steps=1).save(folder / "own.safetensors")
    services.language_model(folder / "wide", width=32)
    services.language_model(folder / "other", end=None)
    save_file({"a": torch.zeros(1)}, folder / "foreign.safetensors")
    (folder / "pickle.safetensors").write_bytes(b"\x80\x04")
    (folder / "short.txt").write_text("the cat\n\n")
    for arguments, message in (
        (
            ("wide", "the", "--tuned", "own.safetensors"),
            "this tuned lens was trained for gpt, whose weights are different",
        ),
        (("gpt", "the", "--tuned", "foreign.safetensors"), "not a tuned lens: write one with tune_lens (--tune)"),
        (("gpt", "the", "--tuned", "pickle.safetensors"), "cannot read a tuned lens"),
        (("gpt", "the", "--tuned", "missing.safetensors"), "cannot read a tuned lens: No such file"),
        (("gpt", "--tune", "short.txt", "--out", "a.safetensors"), "tokens to tune a lens on: expected at least 100"),
        (("gpt", "--tune", "missing.txt", "--out", "a.safetensors"), "missing.txt"),
    ):
        paths = [folder / each if each.endswith((".txt", ".safetensors")) else each for each in arguments[1:]]
        status, out, error = shown(capsys, folder / arguments[0], *paths)
        assert (status, out, error.count("\n")) == (2, "", 1), error
        assert message in error
    assert not (folder / "a.safetensors").exists()
    with pytest.raises(ValueError, match="steps is 0: expected 1 to 100,000"):
        gpt.tune_lens(TEXTS, steps=0)
