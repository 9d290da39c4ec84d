"""Preprocessing of images: results equal those of transformers, and bad settings are rejected."""

import json
from typing import Any

import numpy as np
import pytest
from PIL import Image

from manyheads.data.images.preprocessing import Preprocessing
from tests.support.pictures import noise


@pytest.mark.parametrize("size", [(50, 41), (33, 90), (24, 24), (28, 28), (1, 9)])
@pytest.mark.parametrize("resample", ["bilinear", "bicubic"])
@pytest.mark.parametrize("squash", [False, True])
@pytest.mark.parametrize("crop", [1.0, 0.875])
def test_transformers_preprocesses_images_equally(
    size: tuple[int, int], resample: Any, squash: bool, crop: float
) -> None:
    from transformers.models.bit.image_processing_pil_bit import BitImageProcessorPil
    from transformers.models.deit.image_processing_pil_deit import DeiTImageProcessorPil
    from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

    ours = Preprocessing(28, crop, (0.4, 0.5, 0.6), (0.2, 0.3, 0.25), resample, 3, squash)
    settings = json.loads(json.dumps(ours.as_dict()))
    assert Preprocessing.from_dict(settings) == ours
    classes = {c.__name__: c for c in (BitImageProcessorPil, DeiTImageProcessorPil, ViTImageProcessorPil)}
    theirs = classes[settings.pop("image_processor_type") + "Pil"](**settings)
    image = noise("RGB", size)
    apart = np.abs(theirs(image).pixel_values[0] - ours.array(image)) * np.array(ours.std).reshape(3, 1, 1) * 255
    # in levels of 255: Pillow keeps the corners of what it resizes in float32, which rounds some to the next level
    assert apart.max() < 1.01
    assert (apart > 0.01).mean() < 0.03


@pytest.mark.parametrize("include_top", [True, False])
@pytest.mark.parametrize("rescale_offset", [True, False])
@pytest.mark.parametrize("do_normalize", [True, False])
def test_the_processor_of_efficientnet_divides_twice(
    include_top: bool, rescale_offset: bool, do_normalize: bool
) -> None:
    from transformers.models.efficientnet.image_processing_pil_efficientnet import EfficientNetImageProcessorPil

    theirs = EfficientNetImageProcessorPil(
        size={"height": 28, "width": 28}, image_mean=[0.4, 0.5, 0.6], image_std=[0.47, 0.48, 0.46],
        include_top=include_top, rescale_offset=rescale_offset, do_normalize=do_normalize,
    )  # fmt: skip
    settings = json.loads(theirs.to_json_string())
    settings["image_processor_type"] = "EfficientNetImageProcessor"
    if include_top:
        del settings["include_top"]  # the default
    image = noise("RGB", (28, 28))
    found = Preprocessing.from_dict(settings).array(image)
    np.testing.assert_allclose(found, theirs(image).pixel_values[0], atol=1e-5)


def test_other_image_processors_are_read() -> None:
    base = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    old = {**base, "size": 224, "resample": 2, "do_resize": True}  # google/vit-base-patch16-224
    assert Preprocessing.from_dict(old) == Preprocessing(224, resample="bilinear", squash=True)
    resnet = {**base, "size": {"shortest_edge": 224}, "crop_pct": 0.875, "resample": 3}
    assert Preprocessing.from_dict(resnet) == Preprocessing(224, 0.875)
    with pytest.raises(ValueError, match="not a square"):
        Preprocessing.from_dict({**base, "size": {"height": 2, "width": 3}})
    with pytest.raises(ValueError, match="is missing"):
        Preprocessing.from_dict(base)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"size": 0}, "^size is 0: expected an integer from 1 to 10000"),
        ({"size": 8, "crop": 1.5}, "^crop is 1.5"),
        ({"size": 8, "crop": float("nan")}, "^crop is nan"),
        ({"size": 8, "std": (1, 1, float("nan"))}, r"^std is \(1, 1, nan\)"),
        ({"size": 8, "std": (1, 1, float("inf"))}, r"^std is \(1, 1, inf\)"),
        ({"size": 8, "mean": (float("-inf"), 0, 0)}, r"^mean is \(-inf, 0, 0\)"),
        ({"size": 8, "channels": 1}, "expected mean and std with"),
        ({"size": 8, "resample": "box"}, "expected one of nearest, lanczos, bilinear, bicubic"),
    ],
)
def test_bad_preprocessing_is_reported(settings: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        Preprocessing(**settings)


def test_one_value_serves_all_channels() -> None:
    assert Preprocessing.of_channels(8, 3, mean=(0.4,), std=(0.2,), crop=0.5) == Preprocessing(
        8, 0.5, (0.4,) * 3, (0.2,) * 3
    )
    assert Preprocessing.of_channels(8, 1, mean=[0.4], std=[0.2]).mode == "L"
    with pytest.raises(ValueError, match="channels is 7: expected one of 1, 3"):
        Preprocessing.of_channels(8, 7, mean=(0.5,), std=(0.5,))
    with pytest.raises(
        ValueError, match=r"std is \(0, 0, 0\): expected a list with each item a number above 0 and at most 100"
    ):
        Preprocessing.of_channels(8, 3, mean=(0.5,), std=(0, 0, 0))


@pytest.mark.parametrize("factor", [1 / 127.5, 1.0, None])
def test_a_rescale_factor_is_applied(factor: float | None) -> None:
    """transformers divides by what the file says, or not at all, before it subtracts the means."""
    from transformers.models.bit.image_processing_pil_bit import BitImageProcessorPil

    settings = Preprocessing(8, 0.875, (0.4, 0.5, 0.6), (0.2, 0.3, 0.25)).as_dict()
    settings |= {"do_rescale": False} if factor is None else {"rescale_factor": factor}
    image = noise("RGB", (8, 8))
    expected = BitImageProcessorPil(**{k: v for k, v in settings.items() if k != "image_processor_type"})(image)
    ours = Preprocessing.from_dict(settings).array(image)
    apart = np.abs(ours / expected.pixel_values[0] - 1)
    assert np.median(apart) < 1e-5  # the resampling rounds some levels to the next


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"size": {"shortest_edge": 0}}, "expected a size of 1 to 10,000 pixels, found .*shortest_edge': 0"),
        ({"size": {"shortest_edge": 10**9}}, "expected a size of 1 to 10,000 pixels"),
        ({"crop_size": {"height": 0, "width": 0}}, "expected a size of 1 to 10,000 pixels"),
        ({"size": True}, "is not a square"),
        ({"rescale_factor": 0}, "rescale_factor is 0; expected a number above 0"),
    ],
)
def test_bad_processor_files_are_reported(change: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        Preprocessing.from_dict({**Preprocessing(8).as_dict(), **change})


def test_a_one_channel_image_is_preprocessed_as_in_transformers() -> None:
    from transformers.models.bit.image_processing_pil_bit import BitImageProcessorPil

    ours = Preprocessing.of_channels(8, 1, mean=(0.4,), std=(0.2,))
    settings = {k: v for k, v in ours.as_dict().items() if k != "image_processor_type"}
    image = Image.fromarray(np.asarray(noise("L", (8, 8))))
    np.testing.assert_allclose(BitImageProcessorPil(**settings)(image).pixel_values[0], ours.array(image), atol=1e-5)
