"""Python examples of docs/how-to/inside.md, run on small untrained models."""

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
from manyheads.data.embedded.digit_strings import digit_tokenizer
from manyheads.models import conv_attention, nonlocal_net, resnet, transformer, universal, vit
from tests.paths import ROOT

PAGE = ROOT / "docs" / "how-to" / "inside.md"
SNIPPETS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
WORDS: dict[str, Any] = {"source_vocab": 20, "target_vocab": 20, "pad": 0, "end": 1, "start": 0}


def pixels(image: Image.Image) -> Any:
    return np.asarray(image, dtype=np.float32).transpose(2, 0, 1) / 255


def run(number: int, models: dict[str, nn.Module], monkeypatch: pytest.MonkeyPatch, **names: Any) -> None:
    def load(run: str) -> Any:
        return SimpleNamespace(
            model=models[run].eval(), tokenizer=digit_tokenizer(), preprocessing=SimpleNamespace(array=pixels)
        )

    monkeypatch.setattr(manyheads, "load", load)
    code = SNIPPETS[number].replace("A man in a blue shirt.", "0123")
    exec(code, names)


def translators() -> list[nn.Module]:
    sizes: dict[str, Any] = {"width": 8, "heads": 2, "feed_forward": 8, "steps": 3}
    fixed = universal.Universal(universal.UniversalConfig(**sizes, **WORDS))
    halting = universal.Universal(universal.UniversalConfig(**sizes, **WORDS, halting="basic"))
    stack = transformer.TransformerConfig(
        **WORDS, width=8, encoder_layers=2, decoder_layers=1, encoder_heads=2, decoder_heads=2,
        encoder_feed_forward=8, decoder_feed_forward=8,
    )  # fmt: skip
    return [transformer.Transformer(stack), fixed, halting]


def test_attend_returns_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    config = transformer.TransformerConfig(
        **WORDS, width=8, encoder_layers=1, decoder_layers=4, encoder_heads=2, decoder_heads=2,
        encoder_feed_forward=8, decoder_feed_forward=8,
    )  # fmt: skip
    model = transformer.Transformer(config).eval()
    tokens, lengths, written = torch.tensor([[2, 3, 4]]), torch.tensor([3]), list[torch.Tensor]()
    translator = SimpleNamespace(model=model, translate=lambda text: written.append(model(tokens, lengths, tokens)))
    names: dict[str, Any] = {"manyheads": manyheads, "translator": translator}
    run(0, {}, monkeypatch, **names)
    usual, without = written
    assert not torch.allclose(usual, without)


@pytest.mark.parametrize("model", translators(), ids=["transformer", "universal", "halting"])
def test_head_statistics_in_numbers(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    def loss() -> float:
        with torch.no_grad():
            return float(model.encode(torch.tensor([[2, 3, 4]])).square().mean())  # type: ignore[operator]

    run(1, {"runs/mine": model}, monkeypatch, loss=loss)


def test_paper_figures_are_reproduced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    for name in ("cat", "dog"):
        Image.fromarray(random.integers(0, 255, (32, 32, 3), dtype=np.uint8)).save(f"{name}.png")
    torch.manual_seed(0)
    small: dict[str, Any] = {
        "labels": ("a", "b"),
        "image_size": 32,
        "width": 8,
        "layers": 2,
        "heads": 2,
        "feed_forward": 8,
    }
    net = nonlocal_net.NonLocalConfig(labels=("a", "b"), depths=(2, 2), widths=(8, 8), stem_width=8, stages=(1, 2))
    run(2, {}, monkeypatch)
    with Image.open("clip.gif") as clip:
        assert clip.n_frames == 5  # type: ignore[attr-defined]
    se = resnet.ResNetConfig(labels=("a", "b"), depths=(1, 1), widths=(8, 8), stem_width=8, squeeze=2)
    run(3, {
        "runs/se": resnet.ResNet(se),
        "runs/nonlocal": nonlocal_net.NonLocalNet(net),
        "runs/conv-attention": conv_attention.ConvAttention(conv_attention.ConvAttentionConfig(**small)),
        "runs/deit": vit.ViT(vit.ViTConfig(**small, patch=8, distilled=True)),
    }, monkeypatch)  # fmt: skip
    assert {"arrows.png", "maps.png", "channels.png"} <= {file.name for file in tmp_path.iterdir()}
