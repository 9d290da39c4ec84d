"""Augmentation, compared with timm, with formulas, and with a brute-force search for the result."""

import importlib.util
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageEnhance

from manyheads.data.images.augmentation import (
    DEIT,
    OPERATIONS,
    POLICIES,
    POLICY_OPERATIONS,
    Augmentation,
    Fill,
    batch_random,
    color_jitter,
    cutmix_box,
    epoch_order,
    erase,
    item_random,
    resized_crop_box,
)
from manyheads.data.images.preprocessing import Preprocessing

EXPECTS = Preprocessing(16, mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.25))
GRAY = Preprocessing(16, mean=(0.4,), std=(0.2,), channels=1)
PIXELS = np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)
IMAGE = Image.fromarray(PIXELS)


@pytest.fixture(scope="module")
def timm() -> ModuleType:
    """timm's auto_augment.py alone: the package as a whole wants torchvision."""
    found = importlib.util.find_spec("timm")
    if found is None or not found.submodule_search_locations:
        pytest.skip("timm is not installed")
    file = Path(found.submodule_search_locations[0], "data", "auto_augment.py")
    spec = importlib.util.spec_from_file_location("timm_auto_augment", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("image", "expects"), [(IMAGE.convert("L"), GRAY), (IMAGE, EXPECTS)], ids=["grey", "rgb"])
def test_operations_equal_timm(
    timm: ModuleType, image: Image.Image, expects: Preprocessing, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill = Fill.of(expects)
    hparams = {"img_mean": fill.color, "interpolation": Image.Resampling.BICUBIC}
    names = timm._RAND_INCREASING_TRANSFORMS
    assert len(names) == len(OPERATIONS) == 15
    for sign in (1.0, -1.0):
        monkeypatch.setattr(timm, "_randomly_negate", lambda value, sign=sign: sign * value)
        for (name, operation), magnitude in product(zip(names, OPERATIONS, strict=True), (0, 3.7, 9, 10)):
            if "Posterize" in name:
                magnitude = min(magnitude, 9.9)  # at 10 timm asks for 0 bits, which Pillow refuses
                operation(image, 1.0, sign, fill)
            theirs = timm.AugmentOp(name, prob=1.0, magnitude=magnitude, hparams=hparams)(image)
            ours = operation(image, magnitude / 10, sign, fill)
            message = f"{name} by {sign * magnitude}"
            np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs), err_msg=message)


def test_deits_augmentation_strength_is_used(timm: ModuleType) -> None:
    policy = timm.rand_augment_transform("rand-m9-mstd0.5-inc1")
    assert policy.num_layers == DEIT.randaugment
    assert {(op.magnitude, op.magnitude_std, op.prob) for op in policy.ops} == {(DEIT.magnitude, 0.5, 0.5)}
    assert DEIT.magnitude_std == 0.5


@pytest.mark.parametrize(("image", "expects"), [(IMAGE.convert("L"), GRAY), (IMAGE, EXPECTS)], ids=["grey", "rgb"])
def test_policies_of_autoaugment_equal_timm(
    timm: ModuleType, image: Image.Image, expects: Preprocessing, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill = Fill.of(expects)
    theirs = timm.auto_augment_policy_original({"img_mean": fill.color, "interpolation": Image.Resampling.BICUBIC})
    assert len(theirs) == len(POLICIES) == 25
    for sign, (ours, policy) in product((1.0, -1.0), zip(POLICIES, theirs, strict=True)):
        monkeypatch.setattr(timm, "_randomly_negate", lambda value, sign=sign: sign * value)
        for (name, probability, level), operation in zip(ours, policy, strict=True):
            assert (probability, level * 10) == (operation.prob, operation.magnitude), operation
            operation.prob = 1.0
            found = POLICY_OPERATIONS[name](image, level, sign, fill)
            np.testing.assert_array_equal(np.asarray(found), np.asarray(operation(image)), err_msg=str(operation))
            operation.prob = probability


@pytest.mark.parametrize("level", [0, 3, 9, 10])
def test_operations_of_autoaugment_equal_timm_at_any_level(
    timm: ModuleType, level: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill = Fill.of(EXPECTS)
    monkeypatch.setattr(timm, "_randomly_negate", lambda value: value)
    names = {"posterize": "PosterizeOriginal", "shear": "ShearX", "autocontrast": "AutoContrast"}
    for name, operation in POLICY_OPERATIONS.items():
        theirs = timm.AugmentOp(
            names.get(name, name.capitalize()), prob=1.0, magnitude=level,
            hparams={"img_mean": fill.color, "interpolation": Image.Resampling.BICUBIC},
        )  # fmt: skip
        found = operation(IMAGE, level / 10, 1.0, fill)
        np.testing.assert_array_equal(np.asarray(found), np.asarray(theirs(IMAGE)), err_msg=name)


def test_one_pair_of_autoaugment_is_applied() -> None:
    fill = Fill.of(EXPECTS)
    results = {EXPECTS.normalized(IMAGE).tobytes()}
    for first, second in POLICIES:
        for signs in product((1.0, -1.0), repeat=2):
            one, two = (
                lambda image, op=op, sign=sign: POLICY_OPERATIONS[op[0]](image, op[2], sign, fill)
                for op, sign in zip((first, second), signs, strict=True)
            )
            images = [one(IMAGE), two(IMAGE), two(one(IMAGE))]
            results |= {EXPECTS.normalized(image).tobytes() for image in images}
    seen = {Augmentation(autoaugment=True).image(IMAGE, EXPECTS, item_random(0, 0, i)).tobytes() for i in range(300)}
    assert seen <= results
    assert len(seen) > 30
    with pytest.raises(ValueError, match="autoaugment and randaugment: expected one of them"):
        Augmentation(autoaugment=True, randaugment=2)


def test_half_of_the_operations_are_applied() -> None:
    plain = EXPECTS.array(IMAGE)
    changed = [
        not np.array_equal(Augmentation(randaugment=1).image(IMAGE, EXPECTS, item_random(0, 0, i)), plain)
        for i in range(400)
    ]
    assert 0.4 < np.mean(changed) < 0.55  # an operation may change nothing (autocontrast of noise)


def test_disabled_augmentation_changes_nothing_and_draws_no_numbers() -> None:
    import random

    before, numpy_before = random.getstate(), str(np.random.get_state())
    for size in ((16, 16), (40, 23)):
        image = Image.fromarray(np.random.default_rng(1).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8))
        found = Augmentation().image(image, EXPECTS, item_random(0, 0, 0))
        np.testing.assert_array_equal(found, EXPECTS.array(image))
        DEIT.image(image, EXPECTS, item_random(0, 0, 0))
    assert random.getstate() == before
    assert str(np.random.get_state()) == numpy_before


def test_draws_depend_only_on_seed_epoch_item_and_repeat() -> None:
    numbers = [(0, 0, 0, 0), (1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1)]
    found = [DEIT.image(IMAGE, EXPECTS, item_random(*n)) for n in numbers]
    again = [DEIT.image(IMAGE, EXPECTS, item_random(*n)) for n in numbers]
    for i, one in enumerate(found):
        np.testing.assert_array_equal(one, again[i])
        assert not any(np.array_equal(one, other) for other in found[i + 1 :])
    streams = [item_random(0, 0, 0), batch_random(0, 0, 0), batch_random(0, 0, 1)]
    assert len({stream.random() for stream in streams}) == 3


def test_flip() -> None:
    found = Augmentation(flip=1).image(IMAGE, EXPECTS, item_random(0, 0, 0))
    np.testing.assert_array_equal(found, EXPECTS.array(IMAGE)[:, :, ::-1])
    share = np.mean([
        np.array_equal(Augmentation(flip=0.5).image(IMAGE, EXPECTS, item_random(0, 0, i)), found) for i in range(300)
    ])  # fmt: skip
    assert 0.4 < share < 0.6


def test_padded_crops_are_windows_of_the_padded_image() -> None:
    padded = np.pad(PIXELS, ((4, 4), (4, 4), (0, 0)))
    windows = {padded[y : y + 16, x : x + 16].tobytes(): (y, x) for y in range(9) for x in range(9)}
    seen = set()
    for i in range(600):
        found = Augmentation(crop="padded").image(IMAGE, EXPECTS, item_random(0, 0, i))
        levels = (found.transpose(1, 2, 0) * np.array(EXPECTS.std) + np.array(EXPECTS.mean)) * 255
        seen.add(windows[np.round(levels).astype(np.uint8).tobytes()])
    assert len(seen) > 75  # of 81


def test_resized_crops() -> None:
    boxes = [resized_crop_box(100, 80, (0.08, 1.0), item_random(0, 0, i)) for i in range(600)]
    areas = np.array([(r - x) * (b - y) / 8000 for x, y, r, b in boxes])
    shapes = np.array([(r - x) / (b - y) for x, y, r, b in boxes])
    assert all(0 <= x < r <= 100 and 0 <= y < b <= 80 for x, y, r, b in boxes)
    assert 0.07 < areas.min() < 0.15
    assert 0.85 < areas.max() <= 1
    assert 0.4 < areas.mean() < 0.56
    assert shapes.min() > 0.7
    assert shapes.max() < 1.4
    assert resized_crop_box(1000, 3, (0.9, 1.0), item_random(0, 0, 0)) == (498, 0, 502, 3)  # 4 to 3, in the middle
    assert resized_crop_box(1, 1, (0.08, 1.0), item_random(0, 0, 0)) == (0, 0, 1, 1)
    box = resized_crop_box(16, 16, (0.08, 1.0), item_random(3, 1, 4))
    found = Augmentation(crop="resized").image(IMAGE, EXPECTS, item_random(3, 1, 4))
    part = IMAGE.crop(box).resize((16, 16), Image.Resampling.BICUBIC)
    assert (
        np.abs(found - EXPECTS.normalized(part))[:, 4:12, 4:12].mean() < 0.5
    )  # Pillow looks beyond the edges of a box


def test_color_jitter_of_any_strength() -> None:
    np.testing.assert_array_equal(np.asarray(color_jitter(IMAGE, 0.0, item_random(0, 0, 0))), PIXELS)
    random = item_random(0, 0, 1)
    factors, order = random.uniform(0.6, 1.4, 3), random.permutation(3)
    expected = IMAGE
    for kind in order:
        expected = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)[kind](expected).enhance(
            factors[kind]
        )
    found = color_jitter(IMAGE, 0.4, item_random(0, 0, 1))
    np.testing.assert_array_equal(np.asarray(found), np.asarray(expected))
    assert not np.array_equal(np.asarray(found), PIXELS)


def test_erasing_fills_a_rectangle_with_noise() -> None:
    shares, inside = [], []
    for i in range(300):
        pixels = np.full((3, 32, 32), 7.0, dtype=np.float32)
        erase(pixels, item_random(0, 0, i))
        gone = (pixels != 7).all(0)
        rows, columns = np.flatnonzero(gone.any(1)), np.flatnonzero(gone.any(0))
        assert gone[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1].all()
        assert gone.sum() == len(rows) * len(columns)
        shares.append(gone.mean())
        inside.append(pixels[:, gone])
    noise = np.concatenate(inside, axis=1)
    assert 0.015 < min(shares) < 0.06
    assert 0.28 < max(shares) < 0.36
    assert abs(noise.mean()) < 0.02
    assert abs(noise.std() - 1) < 0.02
    erased = [
        not np.array_equal(Augmentation(erasing=0.25).image(IMAGE, EXPECTS, item_random(0, 0, i)), EXPECTS.array(IMAGE))
        for i in range(400)
    ]
    assert 0.19 < np.mean(erased) < 0.31


IMAGES = np.random.default_rng(2).standard_normal((5, 3, 8, 10)).astype(np.float32)
CLASSES = np.array([0, 1, 2, 3, 3])


def test_mixup_blends_images_and_labels() -> None:
    shares = []
    for batch in range(200):
        mixed, labels = Augmentation(mixup=0.8).batch(IMAGES, CLASSES, 4, batch_random(0, 0, batch))
        share = labels[0, 0]
        shares.append(share)
        np.testing.assert_allclose(mixed, share * IMAGES + (1 - share) * IMAGES[::-1], atol=1e-6)
        certain = np.eye(4)[CLASSES]
        np.testing.assert_allclose(labels, share * certain + (1 - share) * certain[::-1], atol=1e-6)
    assert abs(np.mean(shares) - 0.5) < 0.08
    assert abs(np.var(shares) - 1 / (4 * (2 * 0.8 + 1))) < 0.02  # of Beta(a, a)


def test_cutmix_labels_match_pixel_fractions() -> None:
    own_shares = []
    for batch in range(200):
        mixed, labels = Augmentation(cutmix=1.0).batch(IMAGES, CLASSES, 4, batch_random(0, 0, batch))
        own = (mixed == IMAGES)[[0, 1, 3, 4]]
        assert ((mixed == IMAGES) | (mixed == IMAGES[::-1])).all()
        assert (own == own[0, 0]).all()
        np.testing.assert_allclose(labels[0], [own[0, 0].mean(), 0, 0, 1 - own[0, 0].mean()], atol=1e-6)
        own_shares.append(own[0, 0].mean())
    assert 0.5 < np.mean(own_shares) < 0.75  # boxes are cut off at the edges
    rows, columns = cutmix_box(8, 10, 0.0, batch_random(0, 0, 0))
    assert rows.stop - rows.start <= 8
    assert columns.stop - columns.start <= 10


def test_both_runs_take_turns() -> None:
    cut = []
    for batch in range(300):
        mixed, _ = Augmentation(mixup=0.8, cutmix=1.0).batch(IMAGES, CLASSES, 4, batch_random(1, 0, batch))
        cut.append(bool(((mixed == IMAGES) | (mixed == IMAGES[::-1])).all()))
    assert 0.42 < np.mean(cut) < 0.58
    assert not Augmentation().mixes
    assert DEIT.mixes


def test_repeated_augmentation_keeps_the_epoch_length() -> None:
    order = epoch_order(100, 0, 0, repeats=3)
    assert order.shape == (100, 2)
    items, counts = np.unique(order[:, 0], return_counts=True)
    assert len(items) == 34
    assert sorted(counts)[:2] == [1, 3]
    assert len({tuple(row) for row in order}) == 100
    np.testing.assert_array_equal(order[:6, 1], [0, 1, 2, 0, 1, 2])
    once = epoch_order(100, 0, 0)
    np.testing.assert_array_equal(np.sort(once[:, 0]), np.arange(100))
    assert not np.array_equal(once, epoch_order(100, 0, 1))
    assert not np.array_equal(once, epoch_order(100, 1, 0))
    np.testing.assert_array_equal(once, epoch_order(100, 0, 0))


@pytest.mark.parametrize(
    "settings",
    [{"crop": "middle"}, {"flip": 1.5}, {"erasing": -0.1}, {"mixup": -1}, {"scale": (0.5, 2)}, {"repeats": 0}],
)
def test_bad_settings_are_reported(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"^{next(iter(settings))} is .*expected"):
        Augmentation(**settings)


@pytest.mark.parametrize(
    "name", ["flip", "jitter", "magnitude", "magnitude_std", "erasing", "mixup", "cutmix", "switch", "scale"]
)
def test_settings_must_be_finite(name: str) -> None:
    for value in (float("nan"), float("inf"), float("-inf")):
        with pytest.raises(ValueError, match=f"^{name} is "):
            Augmentation(**{name: (0.5, value) if name == "scale" else value})  # type: ignore[arg-type]


@pytest.mark.parametrize("expects", [EXPECTS, GRAY])
@pytest.mark.parametrize("size", [(1, 1), (300, 1), (9, 31)])
def test_the_recipe_runs_on_unusual_images(expects: Preprocessing, size: tuple[int, int]) -> None:
    everything = Augmentation(**{**vars(DEIT), "jitter": 0.4, "randaugment": 4})
    image = Image.new(expects.mode, size, 77 if expects.channels == 1 else (7, 77, 177))
    for i in range(20):
        found = everything.image(image, expects, item_random(0, 0, i))
        assert (found.shape, found.dtype) == ((expects.channels, 16, 16), np.float32)
        assert np.isfinite(found).all()
