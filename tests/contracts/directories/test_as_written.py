"""Model directories as other tools write them: prefixes of names, unknown keys, incomplete configurations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from manyheads import directory
from manyheads.data.images.preprocessing import Preprocessing
from manyheads.errors import UserError
from manyheads.models.adapt import adapt
from manyheads.models.bert import Bert, BertConfig
from manyheads.models.presets import build, preset

transformers = pytest.importorskip("transformers")


@pytest.fixture
def bert(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    config = BertConfig(
        vocab=20, width=8, layers=1, heads=2, feed_forward=8, max_positions=8, head="masked_lm", segment_types=2
    )
    directory.save(tmp_path, Bert(config))
    return tmp_path


def edit(folder: Path, **changes: Any) -> None:
    settings = json.loads((folder / "config.json").read_text()) | changes
    kept = {key: value for key, value in settings.items() if value != "absent"}
    (folder / "config.json").write_text(json.dumps(kept))


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "module._orig_mod."])
def test_prefixes_of_ddp_and_compile_are_removed(bert: Path, prefix: str) -> None:
    expected = directory.load(bert).model.state_dict()
    tensors = load_file(bert / "model.safetensors")
    save_file({f"{prefix}{name}": tensor for name, tensor in tensors.items()}, bert / "model.safetensors")
    found = directory.load(bert).model.state_dict()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_unknown_keys_are_ignored_with_a_warning(bert: Path, caplog: pytest.LogCaptureFixture) -> None:
    edit(bert, trained_by="me", novelty=3, unused=None, switched_off=False)
    directory.load(bert)
    assert caplog.messages == ["ignoring unknown keys of config.json: 'trained_by', 'novelty'"]
    edit(bert, hidden_size=16)
    with pytest.raises(UserError, match="misshapen"):
        directory.load(bert)


def test_a_config_without_architectures_names_them(bert: Path) -> None:
    edit(bert, architectures="absent")
    with pytest.raises(UserError, match=r"unexpected: cls.*lacks 'architectures', which names the head"):
        directory.load(bert)


def test_an_empty_tokenizer_is_reported_at_loading(bert: Path) -> None:
    from tokenizers import Tokenizer, models

    Tokenizer(models.WordLevel({}, unk_token="[UNK]")).save(str(bert / "tokenizer.json"))
    with pytest.raises(UserError, match="tokenizer has 0 entries, but the model's vocabulary size is 20"):
        directory.load(bert)


@pytest.mark.parametrize(
    "changes",
    [
        {"image_mean": 0.5, "image_std": 0.25},
        {"image_mean": None, "image_std": None},
        {"rescale_factor": None},
        {"resample": None},
        {"resample": 1},
        {"resample": 0},
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", ["ViTImageProcessor", "DeiTImageProcessor", "BitImageProcessor"])
def test_numbers_and_null_equal_transformers(kind: str, changes: dict[str, Any]) -> None:
    size: dict[str, Any] = {"shortest_edge": 12} if kind.startswith("Bit") else {"height": 12, "width": 12}
    settings = {"image_processor_type": kind, "size": size, "do_center_crop": False, "image_mean": [0.4, 0.5, 0.6],
                "image_std": [0.2, 0.3, 0.4], **changes}  # fmt: skip
    image = Image.effect_noise((31, 31), 80).convert("RGB")
    # transformers replaces null by the default of the class only if the key is missing
    stated = {key: value for key, value in settings.items() if value is not None}
    processor = getattr(transformers, kind).from_dict(stated)
    theirs = processor(image, return_tensors="pt")["pixel_values"][0]
    ours = torch.from_numpy(Preprocessing.from_dict(settings).array(image))
    assert (ours - theirs).abs().median() < 1e-5
    if "image_mean" in changes and changes["image_mean"] is not None:
        assert Preprocessing.from_dict(settings, 1).mean == (0.5,)


@pytest.mark.parametrize("name", ["vit/2-8", "resnet/20-small"])
def test_one_channel_sums_over_the_channels_of_the_first_convolution(name: str) -> None:
    torch.manual_seed(0)
    model = build(preset(name, labels=("a", "b"), channels=3)).eval()
    gray, new = adapt(model, channels=1)
    image = torch.randn(2, 1, model.config.image_size, model.config.image_size)
    torch.testing.assert_close(gray.eval()(image), model(image.expand(-1, 3, -1, -1)))
    assert new == []
    color, _ = adapt(gray, channels=3)
    torch.testing.assert_close(color.eval()(image.expand(-1, 3, -1, -1)), gray(image))


def test_an_impossible_change_names_only_the_users_settings() -> None:
    model = build(preset("vit/2-8", labels=("a", "b")))
    with pytest.raises(UserError, match=r"^width would change the shapes"):
        adapt(model, width=model.config.width * 2, labels=("a", "b", "c"))
