"""Checked images in files: decompression bombs, scratch files, tables."""

import gc
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
from PIL import Image

from manyheads.data.images.labeled_images import read_images
from manyheads.data.images.loader import ImageLoader
from manyheads.data.images.preprocessing import Preprocessing
from manyheads.data.images.source import ImageSource
from manyheads.data.images.store import Stored
from tests.support.pictures import (
    as_idx_gz,
    as_parquet,
    encoded,
    many,
)  # fmt: skip


def test_a_table_of_images_is_not_copied_to_workers(tmp_path: Path) -> None:
    """Pickling a data set for a worker copies less than 0.1% of its 6 MB of images."""
    rng = np.random.default_rng(0)
    images = [encoded(Image.fromarray(rng.integers(0, 256, (600, 600, 3), dtype=np.uint8))) for _ in range(6)]
    file = as_parquet(tmp_path, image=images, label=["a", "b"] * 3)
    data = read_images(file, cache_folder=tmp_path / "kept")
    assert all(isinstance(item.source, Stored) for item in data.items)
    assert len(pickle.dumps(data.items)) < 6_000
    copies = pickle.loads(pickle.dumps(data.items))
    for item, png in zip(copies, images, strict=True):
        assert item.source.image() == png
    workers = ImageLoader(data, ("a", "b"), Preprocessing(8), batch_items=2, workers=1)
    alone = ImageLoader(data, ("a", "b"), Preprocessing(8), batch_items=2)
    np.testing.assert_array_equal(workers.epoch()[1].images, alone.epoch()[1].images)
    workers.close()


def test_a_scratch_file_is_deleted_with_its_data(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    data = read_images(as_parquet(tmp_path), cache_folder=kept)
    assert list(kept.glob("images-*"))
    part = data.subset([0])
    del data
    assert part.image(0).size == (5, 6)
    del part
    gc.collect()
    assert not list(kept.glob("images-*"))
    (kept / "images-of-a-killed-run").write_bytes(b"x")
    many(tmp_path / "d")
    ImageSource(data=str(tmp_path / "d"), cache_folder=kept).read()
    gc.collect()
    assert not list(kept.glob("images-*"))


def test_a_gzip_bomb_is_not_inflated(tmp_path: Path) -> None:
    """A file with 600 MB of zeros after four images is read in a process with less memory."""
    import gzip

    file = as_idx_gz(tmp_path)
    content = gzip.decompress(file.read_bytes())
    with gzip.open(file, "wb", compresslevel=1) as bomb:
        bomb.write(content)
        for _ in range(600):
            bomb.write(bytes(2**20))
    code = (
        "import resource, sys\n"
        "from manyheads.data.images.labeled_images import read_images\n"
        "resource.setrlimit(resource.RLIMIT_DATA, (500 * 2**20,) * 2)\n"
        "try: read_images(sys.argv[1])\n"
        "except ValueError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(file)], capture_output=True, text=True, check=False)
    assert "expected 4 x 6 x 5 bytes, found more; download the file again" in done.stdout, done.stderr
