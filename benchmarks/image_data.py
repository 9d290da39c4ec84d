"""Time that training waits for images, for each form of data and for 0, 1 or 2 loader processes.

    python -m benchmarks image_data [--repeats 3] [--threads 1] [--out FILE.json]

The runs use the recipe `deit` with its augmentation: JPEG photographs of 500 x 375 pixels with random content, resized
to 224 x 224, in batches of 16. ViT-Ti is bound by computation; a network of one layer is bound by its images. The
fraction of time spent waiting is that of metrics.jsonl, without the first interval, when the processes start.
"""

from __future__ import annotations

import io
import statistics
import subprocess
import sys
import tarfile
import tempfile
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
from PIL import Image

from benchmarks.output import command
from manyheads.training.record import hardware
from manyheads.training.run_log import read_metrics

IMAGES, SIZE, EVERY = 1024, (500, 375), 8
RUN = ["preset=vit/ti16", "batch_items=16", "training.accumulate=1", f"training.log_every={EVERY}"]
MODELS = {
    "vit/ti16": [],
    "one layer, 64 wide": [
        "model.patch=32",
        "model.layers=1",
        "model.width=64",
        "model.heads=1",
        "model.feed_forward=128",
    ],
}


def photographs() -> list[bytes]:
    """JPEGs of some 60 KB, smooth at large and noisy in detail, as photographs are."""
    dice, files = np.random.default_rng(0), []
    for _ in range(IMAGES):
        coarse = Image.fromarray(dice.integers(0, 256, (12, 16, 3), np.uint8)).resize(SIZE, Image.Resampling.BICUBIC)
        noise = dice.normal(0, 8, (SIZE[1], SIZE[0], 3))
        made = io.BytesIO()
        Image.fromarray((np.asarray(coarse) + noise).clip(0, 255).astype(np.uint8)).save(made, "JPEG", quality=90)
        files.append(made.getvalue())
    return files


def write(folder: Path) -> dict[str, Path]:
    """The same images, with two labels, as a folder for each label, as shards of tar and as Parquet."""
    forms = {form: folder / form.replace(" ", "-") for form in ("class folders", "tar shards", "Parquet")}
    files = photographs()
    for i, content in enumerate(files):
        place = forms["class folders"] / "train" / str(i % 2) / f"{i:04}.jpg"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
    for path in (forms["tar shards"], forms["Parquet"]):
        path.mkdir()
    for shard in range(4):
        with tarfile.open(forms["tar shards"] / f"train-{shard:05}.tar", "w") as tar:
            for i in range(shard, IMAGES, 4):
                for ending, content in (("jpg", files[i]), ("cls", str(i % 2).encode())):
                    info = tarfile.TarInfo(f"{i:04}.{ending}")
                    info.size = len(content)
                    tar.addfile(info, io.BytesIO(content))
    rows = [{"image": {"bytes": content, "path": None}, "label": i % 2} for i, content in enumerate(files)]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), forms["Parquet"] / "train.parquet")
    return forms


def waiting(data: Path, out: Path, settings: list[str]) -> dict[str, Any]:
    """The share of a run's time that it waits, and the images of a second, in its logged intervals but the first."""
    command = [sys.executable, "-m", "manyheads", "train", "deit", f"data={data}", *RUN, *settings, "--out", str(out)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    logged = [entry for entry in read_metrics(out / "metrics.jsonl") if "waiting" in entry][1:]
    return {
        name: {"median": statistics.median(values), "min": min(values), "max": max(values)}
        for name in ("waiting", "images_per_second")
        for values in ([entry[name] for entry in logged],)
    }


def measure(repeats: int, threads: int | None) -> dict[str, Any]:
    cases: list[dict[str, Any]] = []
    common = [f"threads={threads or 1}", f"training.steps={EVERY * (repeats + 1)}"]
    with tempfile.TemporaryDirectory() as folder:
        runs = product(write(Path(folder)).items(), MODELS.items(), (0, 1, 2))
        for (form, data), (model, settings), workers in runs:
            out = Path(folder) / f"run-{len(cases)}"
            measured = waiting(data, out, [*common, *settings, f"workers={workers}"])
            cases.append({"data": form, "model": model, "workers": workers, **measured})
            print(cases[-1], file=sys.stderr, flush=True)
    return {
        "bench": "image-data", "images": IMAGES, "size": SIZE, "cases": cases, "repeats": repeats,
        "hardware": {**hardware(), "threads": threads or 1},
    }  # fmt: skip


if __name__ == "__main__":
    command(__doc__, 3, measure)
