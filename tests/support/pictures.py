"""Four small images and one of noise, in every supported format."""

import gzip
import io
import json
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
from PIL import Image

RNG = np.random.default_rng(0)
GRAY = RNG.integers(0, 256, (4, 6, 5), dtype=np.uint8)  # four images, 5 wide and 6 high
LABELS = ["cat", "dog", "cat", "dog"]


def encoded(image: Image.Image, form: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


PNGS = [encoded(Image.fromarray(pixels)) for pixels in GRAY]


def as_folder(folder: Path) -> Path:
    for number, (png, label) in enumerate(zip(PNGS, LABELS, strict=True)):
        (folder / "f" / label / "deep").mkdir(parents=True, exist_ok=True)
        (folder / "f" / label / "deep" / f"{number}.png").write_bytes(png)
    for name in (".DS_Store", "Thumbs.db", "desktop.ini"):
        (folder / "f" / "cat" / name).write_bytes(b"x")
    return folder / "f"


def as_parquet(folder: Path, **columns: Any) -> Path:
    columns = columns or {"image": [{"bytes": png, "path": None} for png in PNGS], "label": LABELS}
    pyarrow.parquet.write_table(pyarrow.table(columns), folder / "c.parquet")
    return folder / "c.parquet"


def as_bytes_and_numbers(folder: Path) -> Path:
    (folder / "labels.txt").write_text("cat\ndog\n")
    return as_parquet(folder, img=PNGS, label=[0, 1, 0, 1])


def as_jsonl(folder: Path, rows: list[Any] | None = None) -> Path:
    (folder / "i").mkdir(exist_ok=True)
    for number, png in enumerate(PNGS):
        (folder / "i" / f"{number}.png").write_bytes(png)
    rows = rows or [{"image": f"i/{number}.png", "label": label} for number, label in enumerate(LABELS)]
    (folder / "c.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    return folder / "c.jsonl"


def as_idx(folder: Path, suffix: str = "") -> Path:
    (folder / "labels.txt").write_text("cat\ndog\n")
    write: Callable[..., bytes] = gzip.compress if suffix else bytes
    numbers = bytes(["cat", "dog"].index(label) for label in LABELS)
    images = bytes([0, 0, 8, 3]) + struct.pack(">III", *GRAY.shape) + GRAY.tobytes()
    (folder / f"train-labels-idx1-ubyte{suffix}").write_bytes(write(bytes([0, 0, 8, 1, 0, 0, 0, 4]) + numbers))
    (folder / f"train-images-idx3-ubyte{suffix}").write_bytes(write(images))
    return folder / f"train-images-idx3-ubyte{suffix}"


def as_idx_gz(folder: Path) -> Path:
    return as_idx(folder, ".gz")


def tar_of(file: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(file, "w") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return file


def as_tar(folder: Path) -> Path:
    files: dict[str, bytes] = {}
    for number, (png, label) in enumerate(zip(PNGS, LABELS, strict=True)):
        in_json = {"cls": label.encode()} if number % 2 else {"json": json.dumps({"label": label}).encode()}
        files |= {f"a/{number}.{kind}": content for kind, content in {"png": png, **in_json, "txt": b"a text"}.items()}
    return tar_of(folder / "c.tar", {**files, "a/._0.png": b"hidden"})


def noise(mode: str, size: tuple[int, int] = (7, 5)) -> Image.Image:
    bands = len(Image.new(mode, (1, 1)).getbands())
    shape = (size[1], size[0], bands) if bands > 1 else (size[1], size[0])
    return Image.frombytes(mode, size, RNG.integers(0, 256, shape, dtype=np.uint8).tobytes())


def many(folder: Path, count: int = 60, first: int = 0) -> Path:
    for number in range(first, first + count):
        place = folder / "ab"[number % 2]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((2, 2), number, np.uint8)).save(place / f"{number}.png")
    return folder
