"""Parity of CLIP's image encoder with transformers: alone, with its projection, and as half of a CLIPModel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

import manyheads
from manyheads import directory
from manyheads.models.adapt import adapt
from manyheads.models.vit import ViT, ViTConfig
from tests.contracts.interop.test_vit import noisy
from tests.support.refusals import assert_settings_refused

VISION: dict[str, Any] = {"hidden_size": 20, "intermediate_size": 33, "num_hidden_layers": 2, "num_attention_heads": 4,
                          "image_size": 21, "patch_size": 7, "num_channels": 2, "projection_dim": 11}  # fmt: skip
TEXT: dict[str, Any] = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 20, "num_hidden_layers": 1,
                        "num_attention_heads": 2, "bos_token_id": 2, "eos_token_id": 3,
                        "projection_dim": 11}  # fmt: skip
KINDS = ["CLIPVisionModel", "CLIPVisionModelWithProjection", "CLIPModel"]
PIXELS = torch.randn(3, 2, 21, 21, generator=torch.Generator().manual_seed(1))


def theirs(kind: str, **settings: Any) -> Any:
    torch.manual_seed(0)
    if kind == "CLIPModel":
        config: Any = transformers.CLIPConfig(text_config=TEXT, vision_config={**VISION, **settings}, projection_dim=11)
    else:
        config = transformers.CLIPVisionConfig(**VISION, **settings)
    return noisy(getattr(transformers, kind)(config)).eval()


def same(model: ViT, other: Any) -> None:
    """Compare the states before the last norm, and the pooled or projected state."""
    encoder = getattr(other, "vision_model", other)
    output = encoder(pixel_values=PIXELS)
    expected: Tensor = output.pooler_output
    if model.config.projection:
        expected = other.visual_projection(expected)
    found = [*model.all_states(PIXELS), model(PIXELS)]
    states = encoder(pixel_values=PIXELS, output_hidden_states=True).hidden_states
    for mine, reference in zip(found, [*states, expected], strict=True):
        torch.testing.assert_close(mine, reference, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("activation", ["quick_gelu", "gelu"])
def test_clips_image_encoder_loads_and_saves_with_equal_results(kind: str, activation: str, tmp_path: Path) -> None:
    other = theirs(kind, hidden_act=activation)
    other.save_pretrained(tmp_path / "theirs")
    loaded = directory.load(tmp_path / "theirs")
    assert loaded.family == ("clip" if kind == "CLIPModel" else "clip_vision_model")
    assert loaded.model.config.projection == (None if kind == "CLIPVisionModel" else 11)
    same(loaded.model, other)
    assert loaded.save(tmp_path / "again") == "clip_vision_model"
    name = "CLIPVisionModel" + "WithProjection" * (kind != "CLIPVisionModel")
    again, info = getattr(transformers, name).from_pretrained(tmp_path / "again", output_loading_info=True)
    assert not any(info.values()), info
    same(loaded.model, again)
    assert directory.load(tmp_path / "again").model.config == loaded.model.config


def test_older_names_and_settings_are_read(tmp_path: Path) -> None:
    """Published models have the prefix of the encoder, position ids, and a second copy of the settings."""
    other = theirs("CLIPModel")
    other.save_pretrained(tmp_path)
    tensors = dict(directory.read_safe(tmp_path))
    tensors["vision_model.embeddings.position_ids"] = torch.arange(10)[None]
    directory.write_files(tmp_path, {"model.safetensors": tensors})
    same(directory.load(tmp_path).model, other)
    plain = {n.removeprefix("vision_model."): t for n, t in tensors.items() if n.startswith("vision_model.")}
    encoder = theirs("CLIPVisionModel")
    encoder.load_state_dict({n: t for n, t in plain.items() if "ids" not in n})
    encoder.save_pretrained(tmp_path / "encoder")
    prefixed = {f"vision_model.{name}": tensor for name, tensor in plain.items()}
    directory.write_files(tmp_path / "encoder", {"model.safetensors": prefixed})
    same(directory.load(tmp_path / "encoder").model, encoder)


def test_a_directory_with_a_tokenizer_embeds_images_and_is_fine_tuned(tmp_path: Path) -> None:
    from tests.contracts.interop.test_dinov2 import image
    from tests.support.reference import tokenizer

    torch.manual_seed(0)
    config = transformers.CLIPConfig(text_config=TEXT, vision_config={**VISION, "num_channels": 3}, projection_dim=11)
    other = noisy(transformers.CLIPModel(config)).eval()
    other.save_pretrained(tmp_path / "clip")
    tokenizer().save(str(tmp_path / "clip" / "tokenizer.json"))
    processor = transformers.CLIPImageProcessor(
        size={"shortest_edge": 21}, crop_size={"height": 21, "width": 21}
    )  # fmt: skip
    processor.save_pretrained(tmp_path / "clip")
    encoder = manyheads.load(tmp_path / "clip")
    from PIL import Image

    photo = Image.open(image(tmp_path / "a.png"))
    pixels = processor(photo, return_tensors="pt")["pixel_values"]
    expected = other.get_image_features(pixel_values=pixels).pooler_output
    found = torch.from_numpy(encoder.embed([str(tmp_path / "a.png")])[0].vector)[None]
    assert torch.cosine_similarity(found, expected) > 0.999  # Pillow and torchvision resize with other roundings.
    tuned, new = adapt(directory.load(tmp_path / "clip").model, labels=("cat", "dog"))
    assert new == ["head.weight", "head.bias"]
    assert tuned.config.projection is None
    assert directory.save(tmp_path / "tuned", tuned) == "manyheads-vit"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vision_config": [1]}, r"'vision_config' is \[1\]; expected an object"),
        ({"architectures": ["CLIPSegModel"]}, "found CLIPSegModel|expected one of CLIPModel"),
    ],
)
def test_unrepresentable_settings_are_reported(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    theirs("CLIPModel").save_pretrained(tmp_path)
    assert_settings_refused(tmp_path, change, message)


def test_our_settings_that_clip_lacks_are_saved_in_our_format(tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"labels": (), "image_size": 14, "patch": 7, "width": 12, "layers": 1, "heads": 2,
                             "feed_forward": 8}  # fmt: skip
    kinds: list[tuple[dict[str, Any], str]] = [
        ({"embedding_norm": True, "norm_eps": 1e-5}, "clip_vision_model"),
        ({"embedding_norm": True, "pool": "mean"}, "manyheads-vit"),
        ({"projection": 5}, "manyheads-vit"),
    ]
    for settings, family in kinds:
        assert directory.save(tmp_path, ViT(ViTConfig(**sizes, **settings))) == family
