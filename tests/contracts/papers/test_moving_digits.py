"""Clips of moving digits: their frames and labels, and splits without common handwriting."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from manyheads.data.images.labeled_images import digits
from papers.nonlocal_net.moving_digits import DIGIT, LABELS, MAX_SPEED, ClipSource

pytest.importorskip("sklearn")
SOURCE = ClipSource(size=60, tested=40, frames=6, side=14, slit=3, seed=3)


def seen(frame: np.ndarray, digit: np.ndarray, slit: int) -> set[tuple[int, int]]:
    """Return the possible positions of a digit in a frame that shows some of its columns."""
    places = set()
    for first in range(DIGIT - slit + 1):
        part = np.zeros_like(digit)
        part[:, first : first + slit] = digit[:, first : first + slit]
        for y in range(len(frame) - DIGIT + 1):
            for x in range(len(frame) - DIGIT + 1):
                whole = np.zeros_like(frame)
                whole[y : y + DIGIT, x : x + DIGIT] = part
                if (whole == frame).all():
                    places.add((y, x))
    return places


@pytest.mark.parametrize("split", ["validation", "test"])
def test_a_clip_shows_a_digit_moving_behind_a_slit(split: str) -> None:
    clips, written = SOURCE.read().known[split], digits(3).known[split].items
    for clip, label in zip(clips.pixels[:8], clips.labels, strict=False):
        assert all((frame.any(0).sum() <= 3) for frame in clip)
        candidates = [item for item in written if {*map(bytes, clip[0].T)} <= {*map(bytes, shown(item.source))}]
        paths = [[seen(frame, np.asarray(item.source), 3) for frame in clip] for item in candidates]
        whole = [(item, path) for item, path in zip(candidates, paths, strict=True) if all(path)]
        assert label in {item.label for item, _ in whole}
        for _, path in whole:
            steps = [
                min(max(abs(a - c), abs(b - d)) for a, b in before for c, d in after)
                for before, after in pairwise(path)
            ]
            assert max(steps) <= MAX_SPEED


def shown(digit: object) -> list[bytes]:
    """A digit's columns at every height, and the empty one, as a frame may have them."""
    columns = [np.zeros(14, dtype=np.uint8)]
    for column in np.asarray(digit).T:
        for y in range(14 - DIGIT + 1):
            columns.append(np.pad(column, (y, 14 - DIGIT - y)))
    return [column.tobytes() for column in columns]


def test_the_seed_decides_and_all_numbers_occur() -> None:
    clips = ClipSource(size=1000, tested=1, seed=1).read().train
    assert {*clips.labels} == {*LABELS["digit"]}
    again, other = (ClipSource(size=1000, tested=1, seed=seed).read().train for seed in (1, 2))
    assert (again.pixels == clips.pixels).all()
    assert (other.pixels != clips.pixels).any()
    part = clips.subset([5, 2])
    assert part.labels == [clips.labels[5], clips.labels[2]]
    assert (part.pixels[1] == clips.pixels[2]).all()


def test_wrong_settings_are_reported() -> None:
    wrongs: tuple[dict[str, Any], ...] = ({"frames": 0}, {"side": 7}, {"slit": 9})
    for wrong in wrongs:
        with pytest.raises(ValueError, match=f"{next(iter(wrong))} is"):
            ClipSource(**wrong)
    with pytest.raises(ValueError, match="cannot be read from files"):
        ClipSource().read_one("clips.gif")


def test_reversed_frames_have_the_other_direction() -> None:
    """So the frames without their order say nothing: each direction has the same distribution of frames."""
    clips = ClipSource(predict="direction", size=400, tested=1, frames=2, seed=1).read().train
    assert {*clips.labels} == {*LABELS["direction"]}
    for (first, second), label in zip(clips.pixels[:50], clips.labels, strict=False):
        steps = {"right": range(1, MAX_SPEED + 1), "left": range(-MAX_SPEED, 0)}
        speed = [step for step in range(-MAX_SPEED, MAX_SPEED + 1) if (np.roll(first, step, 1) == second).all()]
        assert speed[0] in steps[label]
    for frames in clips.pixels.swapaxes(0, 1):
        columns = [frames[[label == name for label in clips.labels]].mean((0, 1)) for name in LABELS["direction"]]
        assert np.corrcoef(*np.cumsum(columns, 1))[0, 1] > 0.99


def test_a_pair_shows_one_picture_twice_or_two_digits() -> None:
    clips = ClipSource(predict="pair", size=80, tested=1, frames=2, side=14, slit=3, seed=3).read().train
    named = {np.asarray(item.source).tobytes(): item.label for item in digits(3).train.items}
    assert {*clips.labels} == {*LABELS["pair"]}
    for clip, label in zip(clips.pixels, clips.labels, strict=True):
        first, second = (
            {
                named[part]
                for y in range(7)
                for x in range(7)
                if (part := frame[y : y + 8, x : x + 8].tobytes()) in named
            }
            for frame in clip
        )
        assert len(first) == len(second) == 1
        assert (first == second) == (label == "same")
