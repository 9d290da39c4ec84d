"""Images in every format and mode; each fault is reported by file and row."""

import io
import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from manyheads.data.images.checking import open_image
from manyheads.data.images.decoding import plain_image
from manyheads.data.images.labeled_images import ImageData, Item, read_images
from manyheads.data.images.preprocessing import Preprocessing
from manyheads.data.images.source import ImageSource
from manyheads.data.readers.splits import SplitData
from tests.support.pictures import (
    GRAY,
    LABELS,
    PNGS,
    RNG,
    as_bytes_and_numbers,
    as_folder,
    as_idx,
    as_idx_gz,
    as_jsonl,
    as_parquet,
    as_tar,
    encoded,
    many,
    noise,
)


@pytest.mark.parametrize("form", [as_folder, as_parquet, as_bytes_and_numbers, as_jsonl, as_idx, as_idx_gz, as_tar])
@pytest.mark.parametrize("decoded", [True, False])
def test_every_form_gives_equal_rows(
    tmp_path: Path, form: Callable[[Path], Path], decoded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not decoded:
        monkeypatch.setattr("manyheads.data.images.labeled_images.MAX_DECODED_BYTES", 0)
    found = read_images(form(tmp_path))
    assert sorted(zip(found.keys, found.labels, strict=True)) == sorted(zip(KEYS, LABELS, strict=True))
    order = [KEYS.index(key) for key in found.keys]
    for i, expected in enumerate(order):
        assert found.image(i).mode == "L"
        np.testing.assert_array_equal(np.asarray(found.image(i)), GRAY[expected])
    assert found.names == ("cat", "dog")
    assert {item.size for item in found.items} == {(5, 6)}
    assert len(set(map(found.place, range(4)))) == 4
    assert Path(found.place(0).rpartition(":")[0] or found.place(0)).exists()


KEYS: list[str] = []


@pytest.fixture(autouse=True)
def keys(tmp_path_factory: pytest.TempPathFactory) -> None:
    if not KEYS:
        KEYS.extend(read_images(as_parquet(tmp_path_factory.mktemp("keys"))).keys)


def exif(orientation: int) -> Image.Exif:
    found = Image.Exif()
    found[0x0112] = orientation
    return found


RGB, RGBA = noise("RGB"), noise("RGBA")
DEEP = RNG.integers(0, 65536, (5, 7)).astype(np.uint16)
FRAMES = [noise("P"), noise("P")]
for frame in FRAMES:
    frame.putpalette(RNG.integers(0, 256, 768, dtype=np.uint8).tobytes())
ON_WHITE = np.asarray(RGBA)[..., :3] * (np.asarray(RGBA)[..., 3:] / 255) + 255 - np.asarray(RGBA)[..., 3:]


@pytest.mark.parametrize(
    ("data", "expected", "within"),
    [
        (encoded(RGB), np.asarray(RGB), 0),
        (encoded(noise("CMYK"), "TIFF"), None, 0),
        (encoded(noise("CMYK"), "JPEG"), None, 0),
        (encoded(FRAMES[0]), np.asarray(FRAMES[0].convert("RGB")), 0),
        (encoded(FRAMES[0], "GIF", save_all=True, append_images=FRAMES[1:]), np.asarray(FRAMES[0].convert("RGB")), 0),
        (encoded(RGBA), ON_WHITE, 1),
        (encoded(FRAMES[0], transparency=bytes(256)), np.full((5, 7, 3), 255), 0),
        (encoded(Image.new("LA", (7, 5), (10, 0))), np.full((5, 7), 255), 0),
        (encoded(Image.fromarray(DEEP)), np.round(DEEP / 257), 0),
        (encoded(Image.fromarray(DEEP), "TIFF"), np.round(DEEP / 257), 0),
        (encoded(Image.fromarray(DEEP.astype(np.int32)), "TIFF"), np.round(DEEP / 257), 0),
        (encoded(Image.fromarray(np.asarray(RGB)[..., 0] > 99)), (np.asarray(RGB)[..., 0] > 99) * 255, 0),
        (encoded(RGB, "PNG", exif=exif(6)), np.rot90(np.asarray(RGB), -1), 0),  # to be turned clockwise
        (encoded(noise("RGB", (1, 1))), None, 0),
        (encoded(noise("L", (20_000, 1))), None, 0),
    ],
    ids=[
        "rgb", "cmyk-tiff", "cmyk-jpeg", "palette", "gif", "alpha", "transparent-palette", "grey-alpha", "16",
        "16-tiff", "32-tiff", "bits", "exif", "one-pixel", "20000",
    ],
)  # fmt: skip
def test_image_modes_become_gray_or_rgb(data: bytes, expected: Any, within: int) -> None:
    image = open_image(data)
    assert image.mode in ("L", "RGB")
    if expected is None:
        expected = np.asarray(Image.open(io.BytesIO(data)).convert(image.mode))
    assert np.abs(np.asarray(image).astype(float) - expected).max() <= within
    opened = plain_image(Image.open(io.BytesIO(data)))
    assert opened.mode == image.mode
    np.testing.assert_array_equal(np.asarray(opened), np.asarray(image))
    for size in (1, 8):
        assert Preprocessing(size, crop=0.875 if size > 1 else 1.0).array(image).shape == (3, size, size)


def claiming(width: int, height: int) -> bytes:
    """A PNG of a few bytes whose header says otherwise."""
    png = PNGS[0]
    header = b"IHDR" + struct.pack(">II", width, height) + png[24:29]
    return png[:12] + header + struct.pack(">I", zlib.crc32(header)) + png[33:]


def png_of(width: int, height: int, row: Any, rows: int = 1, interlaced: bool = False) -> bytes:
    """Return a grayscale PNG with `rows` rows of pixels, which may differ from the height in its header."""
    chunks = [
        b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, interlaced),
        b"IDAT" + zlib.compress((b"\0" + row.tobytes()) * rows),
        b"IEND",
    ]
    parts = [struct.pack(">I", len(c) - 4) + c + struct.pack(">I", zlib.crc32(c)) for c in chunks]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def test_a_png_with_a_black_end_is_complete() -> None:
    black = np.zeros(8, np.uint8)
    assert open_image(png_of(8, 5, black, rows=5)).getbbox() is None
    # eight rows of one byte and the filter's: passes of 1, 1, 2, 2 x 2, 4 x 2, 4 x 4 and 8 x 4 pixels
    shapes = [(1, 1), (1, 1), (2, 1), (2, 2), (4, 2), (4, 4), (8, 4)]
    whole = b"".join(bytes(1 + wide) * high for wide, high in shapes)
    for pixels in (whole, whole[:-1]):
        data = png_of(8, 8, np.frombuffer(pixels, np.uint8)[1:], interlaced=True)
        if pixels is whole:
            assert open_image(data).getbbox() is None
        else:
            with pytest.raises(ValueError, match="truncated or corrupt"):
                open_image(data)
    for mode in ("1", "P", "LA", "RGB", "RGBA"):
        assert open_image(encoded(Image.new(mode, (13, 7)))).size == (13, 7)
    assert open_image(encoded(Image.new("I;16", (13, 7)))).size == (13, 7)


BAD = {
    "text": (b"this is no image", "not an image"),
    "text begun like BMP": (b"BM, said the text", "a BMP image with a truncated or corrupt header"),
    "empty": (b"", "0 bytes"),
    "zip of nothing": (b"PK\x05\x06" + bytes(18), "not an image"),
    "truncated PNG": (encoded(noise("RGB", (40, 40)))[:900], "truncated or corrupt"),
    "truncated JPEG": (encoded(noise("RGB", (40, 40)), "JPEG")[:900], "truncated or corrupt"),
    "truncated GIF": (encoded(noise("L", (40, 40)), "GIF")[:900], "truncated or corrupt"),
    "corrupt": (PNGS[0][:45] + b"????" + PNGS[0][49:], "truncated or corrupt|not an image"),
    "huge": (claiming(20_000, 20_000), "^[^ ]*: 400,000,000 pixels exceed the maximum of 120,000,000"),
    "warned of": (claiming(12_001, 10_000), "12,001 x 10,000 pixels exceed the maximum of"),
    "one row": (png_of(4000, 3000, np.full(4000, 9).astype(np.uint8)), "it contains fewer rows than its header says"),
    "large": (claiming(40_000, 4_000), "40,000 x 4,000 pixels exceed the maximum of"),
    "float": (encoded(Image.fromarray(np.ones((3, 3), np.float32)), "TIFF"), "floating-point"),
    "32 bits": (encoded(Image.fromarray(np.full((3, 3), 70_000, np.int32)), "TIFF"), "32-bit"),
}


@pytest.mark.parametrize("kind", ["truncated PNG", "truncated JPEG", "large", "float", "32 bits"])
def test_an_opened_image_is_reported_like_its_file(kind: str) -> None:
    data, match = BAD[kind]
    with pytest.raises(ValueError, match=rf"^the image: .*({match})") as told:
        plain_image(Image.open(io.BytesIO(data)))
    with pytest.raises(ValueError, match=match) as expected:
        open_image(data)
    assert str(told.value) == f"the image: {expected.value}"


def test_an_image_in_memory_becomes_rgb() -> None:
    assert plain_image(Image.new("RGBA", (2, 2))).getpixel((0, 0)) == (255, 255, 255)
    with pytest.raises(ValueError, match="^here: expected an image, found 0 x 3 pixels; "):
        plain_image(Image.new("L", (0, 3)), "here")


@pytest.mark.parametrize("kind", BAD)
def test_bad_images_are_reported_or_counted(tmp_path: Path, kind: str) -> None:
    data, match = BAD[kind]
    file = as_parquet(tmp_path, image=[*PNGS, data], label=[*LABELS, "cat"])
    with pytest.raises(ValueError, match=match) as told:
        read_images(file)
    assert str(told.value).startswith(f"{file}:5: ")
    assert "\n" not in str(told.value)
    folder = as_folder(tmp_path)
    (folder / "cat" / "bad.png").write_bytes(data)
    with pytest.raises(ValueError, match=match) as told:
        read_images(folder)
    assert str(told.value).startswith(f"{folder / 'cat' / 'bad.png'}: ")
    for path in (file, folder):
        found = read_images(path, skip_bad_lines=True)
        assert (len(found), list(found.skips.values())) == (4, [1])


@pytest.mark.parametrize(
    ("row", "match"),
    [
        ({"image": "i/9.png", "label": "cat"}, r":1: .*i/9.png: no such image file; correct"),
        (
            {"image": "iVBORw0KGgo" * 500, "label": "cat"},
            r":1: 'iVBORw0KGgo.*'\.\.\. is not the path of an image; write",
        ),
        (
            {"image": "c.jsonl", "label": "cat"},
            r":1: .*c.jsonl: not an image in a supported format \(.*\); convert the file if it is an image, "
            r"remove it, or skip such",
        ),
        ({"image": None, "label": "cat"}, ":1: expected an image, found NoneType"),
        ({"image": "i/1.png"}, ":1: the object has no 'label'; write"),
        ({"image": "i/1.png", "label": None}, ":1: expected a label in 'label', found None"),
        ({"image": "i/1.png", "label": -1}, ":1: the label -1 means"),
        ({"image": "i/1.png", "label": -2}, ":1: the label is -2; use labels from 0"),
        ({"image": "i/1.png", "label": "9" * 5000}, r":1: label 9{20}\.\.\. has 5,000 digits"),
        ({"image": "i/1.png", "label": 3.52}, r":1: 'label' is a score, .* to predict a number, set target=r"),
        (
            {"image": "i/1.png", "label": "3.52"},
            r":1: 'label' is a score, not a label: 3\.52 is not an integer; to predict a number, set target=r",
        ),
        ({"image": "i/1.png", "label": float("nan")}, ":1: expected a label .*, found nan; write a name or an integer"),
        ({"image": "i/1.png", "label": ["a"]}, ":1: 'label' has a list of labels; .* set target=multi-label"),
        ({"image": "i/1.png", "label": "\ud800"}, ":1: 'label' contains half a character"),
        (
            {"image": "i/1.png", "label": 2},
            r":1: expected one of the labels cat, dog \(0 to 1\), found '2'; correct it, or skip",
        ),
        ({"image": "i/1.png", "label": "cow"}, r":1: expected one of the labels cat, dog \(0 to 1\), found 'cow'"),
        (["i/1.png"], ":1: expected a JSON object, found list; write a JSON object, or skip such images with"),
    ],
)
def test_bad_rows_are_reported_or_counted(tmp_path: Path, row: Any, match: str) -> None:
    file = as_jsonl(tmp_path, [row, {"image": "i/1.png", "label": 1}])
    with pytest.raises(ValueError, match=match) as told:
        read_images(file, names=("cat", "dog"))
    assert "\n" not in str(told.value)
    found = read_images(file, names=("cat", "dog"), skip_bad_lines=True)
    assert (found.labels, list(found.skips.values())) == (["dog"], [1])


def test_links_are_followed_and_broken_ones_reported(tmp_path: Path) -> None:
    folder = as_folder(tmp_path)
    elsewhere = tmp_path / "elsewhere" / "more"
    elsewhere.mkdir(parents=True)
    Image.fromarray(GRAY[0] // 2).save(elsewhere / "5.png")
    (folder / "cat" / "linked").symlink_to(elsewhere.parent)
    (folder / "cow").symlink_to(elsewhere)
    found = read_images(folder)
    assert sorted(found.labels) == ["cat", "cat", "cat", "cow", "dog", "dog"]
    faults = [
        (folder / "cat" / "gone.png", tmp_path / "gone", "a broken link"),
        (folder / "mouse", tmp_path / "gone", "a broken link"),
        (folder / "cat" / "round", folder, "the link points to a parent folder, "),
        (folder / "all", Path("/"), "the link points to a parent folder, /"),
        (elsewhere / "round", elsewhere.parent, "the link points to a parent folder, "),
    ]
    for link, target, fault in faults:
        link.symlink_to(target)
        with pytest.raises(ValueError, match=f"{link.name}: {fault}.*; remove it, or skip such images"):
            read_images(folder)
        assert len(read_images(folder, skip_bad_lines=True)) == 6
        link.unlink()
    Image.fromarray(GRAY[0]).save(folder / "loose.JPG")
    (folder / "README.md").write_text("of the data")
    with pytest.raises(ValueError, match=r"loose\.JPG: an image outside of the class folders; move it"):
        read_images(folder)
    skipped = read_images(folder, skip_bad_lines=True)
    assert (len(skipped), sum(skipped.skips.values())) == (6, 1)


def test_non_utf8_names_are_handled(tmp_path: Path) -> None:
    folder = as_folder(tmp_path)
    Image.fromarray(GRAY[0]).save(os.fsencode(folder / "cat") + b"/\xff.png")
    assert r"\udcff.png" in "".join(item.place for item in read_images(folder).items).encode().decode()
    os.rename(folder / "dog", os.fsencode(folder) + b"/\xff\xfe")
    with pytest.raises(
        ValueError, match=r"the name of the class folder '\\udcff\\udcfe' is not UTF-8; rename it"
    ) as told:
        read_images(folder)
    str(told.value).encode()
    assert set(read_images(folder, skip_bad_lines=True).labels) == {"cat"}


@pytest.mark.parametrize(
    "classes", [("cat", "test_card"), ("dev", "car", "trainers"), ("train", "bus", "car"), ("train_a", "train_b", "x")]
)
def test_classes_may_be_named_like_splits(tmp_path: Path, classes: tuple[str, ...]) -> None:
    for number in range(40):
        (tmp_path / classes[number % len(classes)]).mkdir(exist_ok=True)
        pixels = np.full((2, 2), number, np.uint8)
        Image.fromarray(pixels).save(tmp_path / classes[number % len(classes)] / f"{number}.png")
    splits = ImageSource(data=str(tmp_path)).read()
    assert splits.train.names == tuple(sorted(classes))
    assert splits.test is None


def test_folders_that_may_be_classes_or_splits_are_reported(tmp_path: Path) -> None:
    many(tmp_path / "d" / "cat")
    many(tmp_path / "d" / "test_card")
    with pytest.raises(
        FileNotFoundError, match="no training data.*used as other splits: test_card; rename folders that are"
    ):
        ImageSource(data=str(tmp_path / "d")).read()
    for name in ("train", "test"):
        (tmp_path / "e" / name).mkdir(parents=True)
        Image.fromarray(GRAY[0]).save(tmp_path / "e" / name / "1.png")
    with pytest.raises(ValueError, match="train: found no class folders; expected .*; if it is a class itself, rename"):
        ImageSource(data=str(tmp_path / "e")).read()


def test_pillow_warnings_name_the_image(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    folder = as_folder(tmp_path)
    broken = b"Exif\0\0II*\0\x08\0\0\0\x05\0\x12\x01\x03\0\x01\0"
    (folder / "cat" / "odd.jpg").write_bytes(encoded(RGB, "JPEG", exif=broken))
    train = read_images(folder)
    (line,) = [line for line in ImageSource().report(SplitData(train, train, None)).splitlines() if "Pillow" in line]
    assert line.startswith(f"warning: Pillow warns about {folder / 'cat' / 'odd.jpg'}: Corrupt EXIF data.")
    open_image(folder / "cat" / "odd.jpg")
    with pytest.raises(ValueError, match="exceed the maximum"):
        open_image(claiming(12_001, 10_000))
    assert not recwarn.list


def test_paths_without_images_are_reported(tmp_path: Path) -> None:
    (tmp_path / "link.png").symlink_to(tmp_path / "gone.png")
    for path, message in (
        (str(tmp_path), "a directory, not an image; give the path"),
        (str(tmp_path / "link.png"), "a broken link to .*gone.png; give the path"),
        (str(tmp_path / "none.png"), "no such file; give the path"),
        ("", "the path '' is empty; give the path"),
    ):
        with pytest.raises(ValueError, match=f"^({path}: )?{message} of an image"):
            open_image(path)


def test_bad_folders_and_files_are_reported(tmp_path: Path) -> None:
    folder = as_folder(tmp_path)
    (folder / "mouse").mkdir()
    with pytest.raises(ValueError, match="mouse: the class folder is empty; add images"):
        read_images(folder)
    assert list(read_images(folder, skip_bad_lines=True).skips.values()) == [1]
    with pytest.raises(ValueError, match="no class folders"):
        read_images(folder / "mouse")
    (tmp_path / "none.jsonl").write_text("")
    with pytest.raises(ValueError, match=r"none.jsonl: found no usable image; give data with images$"):
        read_images(tmp_path / "none.jsonl")
    train, other = (
        ImageData([Item(GRAY[0], label, "", (5, 6), "L") for label in labels], ("cat", "dog", "fox"))
        for labels in (["cat", "dog"], ["fox"])
    )
    with pytest.raises(
        ValueError, match=r"'fox' does not occur in the training data, which has labels cat, dog \(1 such"
    ):
        ImageSource().fitting(other, train)
    (tmp_path / "c.zip").write_bytes(b"PK\x05\x06" + bytes(18))
    with pytest.raises(ValueError, match=r"c\.zip: unknown format.*extract"):
        read_images(tmp_path / "c.zip")
    with pytest.raises(FileNotFoundError, match="nowhere: no such file"):
        read_images(tmp_path / "nowhere")
    (tmp_path / "x.parquet").write_bytes(b"PAR1")
    with pytest.raises(ValueError, match="not a Parquet file"):
        read_images(tmp_path / "x.parquet")
    with pytest.raises(ValueError, match="expected a column 'label', found 'image', 'class'"):
        read_images(as_parquet(tmp_path, image=PNGS, **{"class": LABELS}))
    (tmp_path / "labels.txt").write_text("cat\ncat\n")
    with pytest.raises(ValueError, match="labels.txt:2: expected a unique label name, found 'cat'"):
        read_images(as_parquet(tmp_path))


@pytest.mark.parametrize(
    ("name", "change", "match"),
    [
        ("images-idx3", lambda b: b[:-1], "expected 4 x 6 x 5 bytes, found 119"),
        ("images-idx3", lambda b: b"\1" + b[1:], "not an IDX file of bytes in 3 dimensions"),
        ("labels-idx1", lambda b: b[:7] + b"\3" + b[8:-1], "contains 4 images, but .* contains 3 labels"),
        ("labels-idx1", lambda b: b[:-1] + b"\7", r":4: expected one of the labels cat, dog \(0 to 1\), found '7'"),
    ],
)
def test_bad_idx_files_are_reported(tmp_path: Path, name: str, change: Callable[[bytes], bytes], match: str) -> None:
    file = as_idx(tmp_path)
    other = tmp_path / f"train-{name}-ubyte"
    other.write_bytes(change(other.read_bytes()))
    with pytest.raises(ValueError, match=match):
        read_images(file)
    as_idx_gz(tmp_path)
    broken = tmp_path / "train-images-idx3-ubyte.gz"
    broken.write_bytes(broken.read_bytes()[:40])
    with pytest.raises(ValueError, match="failed to read"):
        read_images(broken)
