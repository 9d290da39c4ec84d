"""Image batches depend only on seed and epoch, not on the number of workers; workers exit with their parent."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from manyheads.data.images.augmentation import CLASSIC, DEIT, Augmentation, epoch_order
from manyheads.data.images.labeled_images import ImageData, Item
from manyheads.data.images.loader import ImageBatch, ImageLoader
from manyheads.data.images.preprocessing import Preprocessing
from tests.paths import ROOT

GRAY = Preprocessing(8, mean=(0.5,), std=(0.5,), channels=1)
LABELS = ("a", "b", "c")


def data(count: int = 23) -> ImageData:
    pixels = np.random.default_rng(0).integers(0, 256, (count, 8, 8), dtype=np.uint8)
    labels = [LABELS[i % 3] for i in range(count)]
    keys = [str(i) for i in range(count)]
    items = [Item(p, label, key, (8, 8), "L") for p, label, key in zip(pixels, labels, keys, strict=True)]
    return ImageData(items, LABELS)


def same(one: ImageBatch, other: ImageBatch) -> bool:
    return np.array_equal(one.images, other.images) and np.array_equal(one.labels, other.labels)


@pytest.fixture(params=[1, 3], scope="module")
def workers(request: pytest.FixtureRequest) -> Iterator[ImageLoader]:
    loader = ImageLoader(data(), LABELS, GRAY, batch_items=4, augmentation=DEIT, seed=5, workers=request.param)
    yield loader
    loader.close()


def test_any_number_of_workers_gives_equal_batches(workers: ImageLoader) -> None:
    alone = ImageLoader(data(), LABELS, GRAY, batch_items=4, augmentation=DEIT, seed=5)
    for epoch, first in ((0, 0), (1, 3), (0, 5)):
        theirs, ours = workers.epoch(epoch), alone.epoch(epoch)
        assert len(theirs) == len(ours) == 6
        assert all(same(theirs[i], ours[i]) for i in range(first, 6))
    jumping = workers.epoch(2)
    assert all(same(jumping[i], alone.epoch(2)[i]) for i in (4, 0, 1, -1, 1))
    with pytest.raises(IndexError):
        jumping[6]
    assert not same(alone.epoch(0)[0], alone.epoch(1)[0])
    other = ImageLoader(data(), LABELS, GRAY, batch_items=4, augmentation=DEIT, seed=6)
    assert not same(alone.epoch(0)[0], other.epoch(0)[0])


def test_scoring_reads_images_unchanged_and_in_order() -> None:
    given = data()
    batches = list(ImageLoader(given, LABELS, GRAY, batch_items=10).epoch())
    assert [batch.items for batch in batches] == [8, 8, 7]
    expected = np.stack([GRAY.array(given.image(i)) for i in range(23)])
    np.testing.assert_array_equal(np.concatenate([batch.images for batch in batches]), expected)
    np.testing.assert_array_equal(np.concatenate([batch.labels for batch in batches]), np.arange(23) % 3)
    assert expected.dtype == np.float32
    assert abs(expected.min() + 1) < 0.02
    assert abs(expected.max() - 1) < 0.02


def test_labels_are_reported_without_decoding(tmp_path: Path) -> None:
    items = [Item(tmp_path / f"{i}.png", label, str(i), (8, 8), "L") for i, label in enumerate("caba")]  # no such files
    given = ImageData(items, LABELS)
    labels = ImageLoader(given, LABELS, GRAY, batch_items=3).labels
    assert (labels.dtype, labels.tolist()) == (np.int64, [2, 0, 1, 0])
    scoring = ImageLoader(data(), LABELS, GRAY, batch_items=10)
    np.testing.assert_array_equal(scoring.labels, np.concatenate([batch.labels for batch in scoring.epoch()]))


def test_an_epoch_shuffles_every_image_once() -> None:
    loader = ImageLoader(data(), LABELS, GRAY, batch_items=6, augmentation=Augmentation(), seed=1)
    images = np.concatenate([batch.images for batch in loader.epoch(0)])
    expected = [GRAY.array(data().image(int(i))) for i in epoch_order(23, 1, 0)[:, 0]]
    np.testing.assert_array_equal(images, np.stack(expected))
    labels = np.concatenate([batch.labels for batch in loader.epoch(0)])
    assert np.bincount(labels.astype(int)).tolist() == [8, 8, 7]


def test_mixed_images_have_soft_labels() -> None:
    hard = ImageLoader(data(), LABELS, GRAY, batch_items=6, augmentation=CLASSIC).epoch(0)[0]
    soft = ImageLoader(data(), LABELS, GRAY, batch_items=6, augmentation=DEIT).epoch(0)[0]
    assert (hard.labels.shape, hard.labels.dtype) == ((6,), np.int64)
    assert (soft.labels.shape, soft.labels.dtype) == ((6, 3), np.float32)
    np.testing.assert_allclose(soft.labels.sum(1), 1, atol=1e-6)


def test_bad_input_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"image 3: expected a label of the model \(a, b\), found 'c'; correct it"):
        ImageLoader(data(), LABELS[:2], GRAY, batch_items=6)
    with pytest.raises(ValueError, match=r"0, 1, 2, 3, 4, 5, 6, 7 and 2 more\), found 'a'; correct it"):
        ImageLoader(data(), "0123456789", GRAY, batch_items=6)
    gone = ImageData([Item(tmp_path / "gone.png", "a", "0", (8, 8), "L")], LABELS)
    with pytest.raises(ValueError, match="gone.png: no such file; give"):
        ImageLoader(gone, LABELS, GRAY, batch_items=1).epoch()[0]


SCRIPT = """
import sys, time
sys.path.insert(0, {root!r})
from tests.unit.data.images.test_loader import *
if __name__ == "__main__":
    loader = ImageLoader(data(), LABELS, GRAY, batch_items=4, augmentation=DEIT, workers=1)
    loader.epoch(0)[0]
    print(*loader._pool._processes, flush=True)
    time.sleep(60)
"""


def test_workers_end_with_a_killed_parent(tmp_path: Path) -> None:
    (tmp_path / "run.py").write_text(SCRIPT.format(root=str(ROOT)))
    with subprocess.Popen([sys.executable, tmp_path / "run.py"], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        parent.send_signal(signal.SIGKILL)
    assert pids
    for _ in range(200):
        if not any(alive(pid) for pid in pids):
            return
        time.sleep(0.05)
    pytest.fail(f"{pids} are still there")


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/stat")
    return not status.exists() or status.read_text().rpartition(")")[2].split()[0] != "Z"


def test_a_killed_worker_is_reported() -> None:
    loader = ImageLoader(data(), LABELS, GRAY, batch_items=4, augmentation=DEIT, workers=1)
    epoch = loader.epoch(0)
    epoch[0]
    assert loader._pool is not None
    for pid in loader._pool._processes:
        os.kill(pid, signal.SIGKILL)
    with pytest.raises(ValueError, match="resume with fewer workers"):
        list(epoch)
    loader.close()
