"""Clips: frames sampled evenly from folders of frames and from multi-frame files."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from manyheads.tasks.images.image_rows import evenly_spaced
from papers.nonlocal_net import clips
from papers.nonlocal_net.clips import read_clip


def frames(count: int) -> list[Image.Image]:
    """Return frames; frame n has brightness 20 n."""
    return [Image.new("L", (6, 4), 20 * number) for number in range(count)]


@pytest.mark.parametrize("kind", ["gif", "png", "webp", "tiff", "folder"])
def test_frames_are_in_temporal_order(tmp_path: Path, kind: str) -> None:
    given = frames(10)
    if kind == "folder":
        path = tmp_path / "clip"
        path.mkdir()
        (path / "notes.txt").write_text("no frame")
        for number, frame in enumerate(given):
            frame.save(path / f"{number:03}.png")
    else:
        path = tmp_path / f"clip.{kind}"
        lossless: Any = {"lossless": True} if kind == "webp" else {}
        given[0].save(path, save_all=True, append_images=given[1:], **lossless)
    clip = read_clip(path, 4)
    assert clip.indices == [0, 3, 6, 9]
    assert [frame.mode in ("L", "RGB") for frame in clip.frames] == [True] * 4
    bright = [float(np.asarray(frame.convert("L")).mean()) for frame in clip.frames]
    np.testing.assert_allclose(bright, [0, 60, 120, 180], atol=2)
    assert read_clip(path, 64).indices == list(range(10))


def test_an_image_is_a_single_frame_clip(tmp_path: Path) -> None:
    frames(1)[0].save(tmp_path / "a.png")
    assert read_clip(tmp_path / "a.png", 8).indices == [0]


def test_even_sampling_keeps_both_ends() -> None:
    assert (evenly_spaced(3, 8), evenly_spaced(9, 3), evenly_spaced(5, 1), evenly_spaced(100, 2)) == (
        [0, 1, 2],
        [0, 4, 8],
        [0],
        [0, 99],
    )


def test_invalid_clips_are_reported_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.gif").write_text("hello")
    given = [Image.fromarray(np.random.default_rng(n).integers(0, 255, (64, 64), dtype=np.uint8)) for n in range(4)]
    given[0].save(tmp_path / "whole.tiff", save_all=True, append_images=given[1:])
    data = (tmp_path / "whole.tiff").read_bytes()
    (tmp_path / "cut.tiff").write_bytes(data[: len(data) * 2 // 3])
    for name, message in (
        ("empty", "found no images; expected the frames of a clip"),
        ("none.gif", "no such file"),
        ("text.gif", "not an image"),
        ("cut.tiff", "cut.tiff"),
    ):
        with pytest.raises(ValueError, match=message) as caught:
            read_clip(tmp_path / name, 8)
        assert "\n" not in str(caught.value)


def test_a_slow_animation_is_refused_before_drawing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert clips.MAX_COMPOSED_PIXELS == 480_000_000
    monkeypatch.setattr(clips, "MAX_COMPOSED_PIXELS", 4_800_000)
    frames = [Image.new("L", (400, 400), shade) for shade in (0, 1, 2)]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=[*frames[1:], *frames * 10])
    with pytest.raises(ValueError, match=r"5,280,000 pixels in all frames exceed the maximum of 4,800,000"):
        read_clip(tmp_path / "a.gif", 2)


def test_oversized_later_frames_are_refused(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (12, 9), color) for color in ("red", "blue")]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    content = bytearray((tmp_path / "a.gif").read_bytes())
    second = content.rindex(b",\x00\x00\x00\x00")  # the place of the second frame
    content[second + 1 : second + 5] = (11_000).to_bytes(2, "little") * 2
    (tmp_path / "a.gif").write_bytes(content)
    with pytest.raises(
        ValueError, match=r"a\.gif: 121,.* pixels in the selected frames exceed the maximum of 120,000,000"
    ):
        read_clip(tmp_path / "a.gif", 2)
