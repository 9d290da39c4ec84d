"""A language model trained on a corpus larger than memory may be: resident memory, and how soon training goes on.

    python -m bench.large_corpus FOLDER [--gigabytes 10] [--threads 2] [--out FILE.json]

The corpus is generated in FOLDER, half of it as JSONL, three eighths as text, an eighth as JSONL compressed by zstd,
which holds more than twice as much: random words, whose frequencies follow Zipf's law. A run reads it, learns its
vocabulary, tokenises and trains a few steps; then a new process opens the same run, and is asked for a batch of the
beginning, the middle and the end of the epoch. Memory is VmHWM and RssAnon of /proc/PID/status, sampled ten times a
second. Going on after an interruption is as simple as calling it again; a corpus that is there is used.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bench import tell
from manyheads.training.record import commit, hardware

SHARD = 250_000_000  # bytes
FORMS = (*["jsonl", "txt"] * 3, "jsonl", "jsonl.zst")
STEPS = 20
RECIPE = ["language-modelling", "tokenizer=byte-bpe", "vocabulary=512", "share=0.00001", f"training.steps={STEPS}"]

FIRST_BATCH = """
import json, sys, time
began = time.perf_counter()
from dataclasses import replace
from pathlib import Path
from manyheads.core.runtime import prepare
from manyheads.data.corpora import TextSource
from manyheads.recipes.run import Run
from manyheads.tasks.language.recipes import LanguageModellingConfig
from manyheads.tasks.language.run import _task
imported, used = time.perf_counter(), time.process_time()
out = Path(sys.argv[2])
config = LanguageModellingConfig(vocabulary=512, share=0.00001)
kept = out / "state" / "tokens"
splits = TextSource(data=sys.argv[1], share=config.share, kept=kept, seed=config.training.seed).read()
task = _task(config, Run("language-modelling", out), splits, prepare(threads=1))
batches = task.batches(0)
place = int(float(sys.argv[3]) * (len(batches) - 1))
batches[place]
ready = time.perf_counter()
print(json.dumps({"batch": place, "batches": len(batches), "import_seconds": imported - began,
                  "seconds": ready - imported,
                  "cpu_seconds": time.process_time() - used, "tokens": len(task.train)}))
"""


def generate(folder: Path, size: float) -> None:
    """Shards of a block of text that comes in another order in each, every row with its number."""
    import pyarrow

    folder.mkdir(parents=True, exist_ok=True)
    block = list(_rows(20_000_000))
    for shard in range(round(size / SHARD)):
        form = FORMS[shard % len(FORMS)]
        file = folder / f"part-{shard:05}.{form}"
        if file.exists():
            continue
        temporary = file.with_name(f".{file.name}")
        out = pyarrow.CompressedOutputStream(str(temporary), "zstd") if form.endswith("zst") else temporary.open("wb")
        dice, number = np.random.default_rng(shard), 0
        with out:
            while temporary.stat().st_size < SHARD:
                for row in dice.permutation(len(block)):
                    text = f"{shard} {number} {block[row]}"
                    out.write((f"{text}\n" if form == "txt" else json.dumps({"text": text}) + "\n").encode())
                    number += 1
                    if number % 1000 == 0 and temporary.stat().st_size >= SHARD:
                        break
        temporary.rename(file)


def _rows(size: int) -> Iterator[str]:
    """Texts of 50 to 800 words, of 20,000 different ones."""
    dice = np.random.default_rng(0)
    letters = list("etaoinshrdlucmfwypvbgkjqxz")
    words = np.array(["".join(dice.choice(letters, size=n)) for n in dice.integers(2, 11, 20_000)], dtype=object)
    chances = np.cumsum(1 / np.arange(1, len(words) + 1))
    while size > 0:
        places = np.searchsorted(chances, dice.random(int(dice.integers(50, 800))) * chances[-1])
        text = " ".join(words[np.minimum(places, len(words) - 1)])
        size -= len(text)
        yield text


def watched(command: list[str]) -> tuple[dict[str, float], float]:
    """(the greatest memory of a process in MiB, by kind; its seconds)."""
    began, peaks = time.perf_counter(), dict.fromkeys(("VmHWM", "RssAnon", "RssFile", "RssShmem"), 0.0)
    with subprocess.Popen(command) as process:
        while process.poll() is None:
            try:
                status = Path(f"/proc/{process.pid}/status").read_text()
            except OSError:
                break
            for name in peaks:
                if found := re.search(rf"{name}:\s+(\d+)", status):
                    peaks[name] = max(peaks[name], int(found[1]) / 1024)
            time.sleep(0.1)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}: {process.returncode}")
    return peaks, time.perf_counter() - began


def measure(folder: Path, gigabytes: float, threads: int) -> dict[str, Any]:
    data, out = folder / "corpus", folder / "run"
    os.environ["RAYON_NUM_THREADS"] = str(threads)
    generate(data, gigabytes * 1e9)
    files = list(data.iterdir())
    train = [sys.executable, "-m", "manyheads", "train", *RECIPE, f"data={data}", "threads=1", "--out", str(out)]
    peaks, seconds = watched([*train, *(["--resume"] if (out / "state").exists() else [])])
    restarts = []
    for place in (0, 0.5, 1):
        command = [sys.executable, "-c", FIRST_BATCH, str(data), str(out), str(place)]
        restarts.append(json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout))
    tokens = restarts[0]["tokens"]
    return {
        "bench": ["large-corpus"],
        "disk_bytes": sum(file.stat().st_size for file in files), "files": len(files),
        "text_bytes": sum(json.loads(file.read_text())["bytes"] for file in (out / "state" / "tokens").glob("*.facts")),
        "tokens": tokens, "peak_mib": peaks, "seconds": seconds, "tokeniser_threads": threads,
        "recipe": RECIPE, "restarts": restarts, "hardware": hardware(), "commit": commit(),
    }  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gigabytes", type=float, default=10)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    tell(measure(options.folder, options.gigabytes, options.threads), options.out)
