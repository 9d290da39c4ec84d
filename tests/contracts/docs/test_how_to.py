"""Python examples of the how-to guides, run on small untrained models."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import manyheads
from lab import results_keep
from manyheads.data.readers.labeled import Labeled
from manyheads.models import conv_attention, nonlocal_net, resnet, transformer, universal, vit
from papers.universal.digit_strings import digit_tokenizer
from tests.paths import ROOT
from tests.support.services import bert, language_model

GUIDES = ROOT / "docs" / "how-to"
WORDS: dict[str, Any] = {"source_vocab": 20, "target_vocab": 20, "pad": 0, "end": 1, "start": 0}


def snippets(guide: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (GUIDES / f"{guide}.md").read_text(encoding="utf-8"), re.DOTALL)


def pixels(image: Image.Image) -> Any:
    return np.asarray(image, dtype=np.float32).transpose(2, 0, 1) / 255


def translator_of(model: nn.Module) -> Any:
    """Return a stand-in for a translator: digits for words, and a forward pass for a translation."""

    def translate(text: str) -> torch.Tensor:
        tokens = torch.tensor([[2, 3, 4]])
        with torch.no_grad():
            output: torch.Tensor = model(tokens, torch.tensor([3]), tokens)
        return output

    tokenizer = digit_tokenizer()
    return SimpleNamespace(model=model, tokenizer=tokenizer, target_tokenizer=tokenizer, translate=translate)


def run(guide: str, models: dict[str, Any], monkeypatch: pytest.MonkeyPatch, **names: Any) -> dict[str, Any]:
    """Run all Python examples of a guide in one namespace, with `models` in place of the runs that they load."""
    monkeypatch.setattr(manyheads, "load", models.__getitem__)
    for code in snippets(guide):
        exec(re.sub(r"A man in a blue shirt\.|\d?\.? ?(March|June|März|Juni) ?\d?,? 2012", "0123", code), names)
    return names


def models_that_translate() -> list[nn.Module]:
    sizes: dict[str, Any] = {"width": 8, "heads": 2, "feed_forward": 8, "steps": 3}
    fixed = universal.Universal(universal.UniversalConfig(**sizes, **WORDS))
    halting = universal.Universal(universal.UniversalConfig(**sizes, **WORDS, halting="basic"))
    return [fixed, halting]


def loss_of(model: nn.Module) -> Any:
    def loss() -> float:
        with torch.no_grad():
            return float(model.encode(torch.tensor([[2, 3, 4]])).square().mean())  # type: ignore[operator]

    return loss


def test_heads_are_recorded_switched_off_and_patched(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    config = transformer.TransformerConfig(
        **WORDS, width=8, encoder_layers=2, decoder_layers=4, encoder_heads=2, decoder_heads=2,
        encoder_feed_forward=8, decoder_feed_forward=8,
    )  # fmt: skip
    model = transformer.Transformer(config).eval()
    translator = translator_of(model)
    names = run("record-and-edit", {"runs/mine": translator}, monkeypatch, loss=loss_of(model))
    assert names["maps"].keys() == {"encoder.blocks.0.attention 0", "encoder.blocks.1.attention 0"}
    assert not torch.allclose(names["without"], translator.translate("0123"))
    usual = names["run"]("0123", "0123")
    assert not torch.allclose(names["ablated"], usual)
    assert names["patched"].shape == usual.shape


@pytest.mark.parametrize("model", models_that_translate(), ids=["fixed", "halting"])
def test_heads_of_a_universal_transformer_are_described(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    model.eval()
    (code,) = [code for code in snippets("record-and-edit") if "HeadStatistics" in code]
    translator = translator_of(model)
    names = {"manyheads": manyheads, "translator": translator, "loss": loss_of(model)}
    exec(code.replace("A man in a blue shirt.", "0123"), names)
    assert len(names["maps"]) >= 2  # one for each step


def test_paper_figures_are_reproduced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    for name in ("cat", "dog"):
        Image.fromarray(random.integers(0, 255, (32, 32, 3), dtype=np.uint8)).save(f"{name}.png")
    torch.manual_seed(0)
    small: dict[str, Any] = {
        "labels": ("a", "b"), "image_size": 32, "width": 8, "layers": 2, "heads": 2, "feed_forward": 8,
    }  # fmt: skip
    net = nonlocal_net.NonLocalConfig(labels=("a", "b"), depths=(2, 2), widths=(8, 8), stem_width=8, stages=(1, 2))
    se = resnet.ResNetConfig(labels=("a", "b"), depths=(1, 1), widths=(8, 8), stem_width=8, squeeze=2)
    networks = {
        "runs/se": resnet.ResNet(se),
        "runs/nonlocal": nonlocal_net.NonLocalNet(net),
        "runs/conv-attention": conv_attention.ConvAttention(conv_attention.ConvAttentionConfig(**small)),
        "runs/deit": vit.ViT(vit.ViTConfig(**small, patch=8, distilled=True)),
    }
    preprocessing = SimpleNamespace(array=pixels)
    models = {name: SimpleNamespace(model=m.eval(), preprocessing=preprocessing) for name, m in networks.items()}
    run("draw-figures", models, monkeypatch)
    with Image.open("clip.gif") as clip:
        assert clip.n_frames == 5  # type: ignore[attr-defined]
    assert {"arrows.png", "maps.png", "channels.png"} <= {file.name for file in tmp_path.iterdir()}


def test_a_model_learns_in_a_plain_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    assert run("own-loop", {}, monkeypatch)["loss"] < 4.5  # ln(256) = 5.5 at the start


def test_numbers_and_several_labels_are_predicted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds: dict[str, Any] = {"runs/similarity": ("regression", ("x",)), "runs/emotions": ("multi-label", ("a", "b"))}
    models = {
        name: manyheads.load(bert(tmp_path / target, head="sequence", labels=labels, target=target))
        for name, (target, labels) in kinds.items()
    }
    names = run("predict-numbers", models, monkeypatch)
    assert isinstance(names["numbers"][0], float)


def test_a_prediction_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = manyheads.load(bert(tmp_path / "bert", head="sequence", labels=("de", "nl")))
    monkeypatch.chdir(tmp_path)
    names = run("explain", {"runs/text-classification": model}, monkeypatch)
    assert names["found"].error < 0.1
    assert "Explanation" in (tmp_path / "words.html").read_text()


def test_errors_of_a_classifier_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = manyheads.load(bert(tmp_path / "bert", head="sequence", labels=("a", "b")))
    monkeypatch.setattr(model, "outcome", lambda: model.evaluate(Labeled(["the cat", "the dog"], ["a", "b"])))
    monkeypatch.chdir(tmp_path)
    names = run("find-errors", {"runs/reviews": model}, monkeypatch)
    assert names["counts"].sum() == 2
    assert (tmp_path / "errors.csv").is_file()


def test_train_on_data_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run("train-in-memory", {}, monkeypatch)
    accuracy, label, step = capsys.readouterr().out.split()[:3]
    assert (float(accuracy), label) == (1.0, "positive")
    assert int(step) < 60


def test_an_estimator_of_scikit_learn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = manyheads.load(bert(tmp_path / "bert", head="sequence", labels=("a", "b", "c")))
    data = Labeled(["the cat", "the dog", "a cat"] * 2, ["a", "b", "c"] * 2)
    monkeypatch.setattr(model, "outcome", lambda: model.evaluate(data))
    names = run("scikit-learn", {"runs/reviews": model}, monkeypatch)
    assert names["search"].best_params_ == {"learning_rate": 3e-3}
    assert names["pipeline"].predict(["A MOVING EVENING"]).tolist() == [1]


def test_costs_of_partial_training_are_those_of_the_records() -> None:
    text = (GUIDES / "fine-tune-cheaply.md").read_text(encoding="utf-8")
    rows = re.findall(r"\| ([\d,]+) \| ([\d.]+) \| ([\d.]+ min|not measured) \| `(.+)` \|", text)
    assert len(rows) >= 3
    for trained, accuracy, minutes, name in rows:
        record = results_keep.kept()[name]
        assert f"{record.get('trained_parameters', record['parameters']):,}" == trained
        assert f"{record['metrics']['accuracy']['value']:.3f}" == accuracy
        if minutes != "not measured":
            assert f"{record['evidence']['seconds'] / 60:.1f} min" == minutes


def test_a_lens_is_read_and_tuned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts.txt").write_text("the cat sat on the mat\n" * 40)
    names = run(
        "read-a-lens", {"runs/language-modeling": manyheads.load(language_model(tmp_path / "gpt"))}, monkeypatch
    )
    assert names["lens"].tuned
    assert names["tuned"].kl.shape == (2, len(names["lens"].layers))
    assert (tmp_path / "lens.html").exists()
