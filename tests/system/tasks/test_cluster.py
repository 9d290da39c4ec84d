"""Predictions of table shards by two workers of a local Ray cluster, and by Spark, as the guide shows them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import manyheads
from tests.paths import ROOT

PAGE = (ROOT / "docs" / "how-to" / "predict-on-a-cluster.md").read_text(encoding="utf-8")
SCRIPT, SPARK = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
SHARDS, ROWS = 12, 300
WORDS = {"moving": "good", "wasted": "bad", "splendid": "good", "tedious": "bad"}


def text(number: int) -> str:
    return f"a {[*WORDS][number % 4]} evening in {1000 + number}"


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with a classifier, shards, and the script of the guide."""
    pd = pytest.importorskip("pandas")
    folder = tmp_path_factory.mktemp("cluster")
    rows = [(text(number), WORDS[[*WORDS][number % 4]]) for number in range(200)]
    settings: dict[str, Any] = {"steps": 60, "vocabulary": 100, "progress": False}
    manyheads.train("text-classification", train=rows, out=folder / "runs" / "reviews", **settings)
    (folder / "shards").mkdir()
    for shard in range(SHARDS):
        numbers = range(shard * ROWS, (shard + 1) * ROWS)
        frame = pd.DataFrame({"id": numbers, "text": [text(number) for number in numbers]})
        frame.to_parquet(folder / "shards" / f"{shard:03}.parquet")
    (folder / "predict_shards.py").write_text(SCRIPT)
    return folder


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)]), "RAY_DEDUP_LOGS": "0"}


def workers_below(parent: int) -> list[int]:
    """Return the processes of Ray below a process that predict shards."""
    parents, names = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            stat = (folder / "stat").read_text().rpartition(")")[2].split()
            parents[int(folder.name)] = int(stat[1])
            names[int(folder.name)] = (folder / "cmdline").read_bytes()
        except (OSError, IndexError):
            continue
    below = {parent}
    for _ in range(6):
        below |= {process for process, above in parents.items() if above in below}
    return [process for process in below if names.get(process, b"").startswith(b"ray::MapWorker")]


def results(folder: Path) -> list[Path]:
    return sorted((folder / "predicted").glob("*.parquet"))


def check(work: Path) -> None:
    import pandas as pd

    predictor = manyheads.load(work / "runs" / "reviews")
    for shard, result in zip(sorted((work / "shards").iterdir()), results(work), strict=True):
        frame = pd.read_parquet(result)
        assert frame[["id", "text"]].equals(pd.read_parquet(shard))
        expected = predictor.classify(list(frame["text"]))
        assert list(frame["prediction"]) == [labels[0].label for labels in expected]
        assert frame["probability"].tolist() == pytest.approx([labels[0].probability for labels in expected], abs=1e-5)


def test_a_killed_worker_loses_no_shard_and_a_second_run_predicts_what_is_missing(work: Path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'ray[data]'")
    command = [sys.executable, "predict_shards.py"]
    log = work / "log.txt"
    with log.open("w") as output:
        run = subprocess.Popen(command, cwd=work, env=environment(), stdout=output, stderr=output)
        killed: list[int] = []
        until = time.monotonic() + 300
        while run.poll() is None and time.monotonic() < until:
            if not killed and results(work) and (found := workers_below(run.pid)):
                assert len(found) <= 2
                os.kill(found[0], signal.SIGKILL)
                killed = found[:1]
            time.sleep(0.02)
    assert run.wait(10) == 0, log.read_text()[-3000:]
    assert killed, "the run ended before a worker could be killed"
    assert f"{SHARDS} shards predicted" in log.read_text()
    check(work)
    before = {path.name: path.stat().st_mtime_ns for path in results(work)}
    for name in ("003.parquet", "007.parquet"):
        (work / "predicted" / name).unlink()
    again = subprocess.run(command, cwd=work, env=environment(), capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr[-3000:]
    assert again.stdout.strip().endswith("2 shards predicted")
    check(work)
    kept = {path.name: path.stat().st_mtime_ns for path in results(work) if path.name[:3] not in ("003", "007")}
    assert kept.items() <= before.items()


def test_spark_predicts_with_the_same_class(work: Path) -> None:
    pytest.importorskip("pyspark", reason="Spark is not installed: pip install pyspark")
    import pandas as pd

    classes = SCRIPT.partition("class PredictShards")[0].replace("import ray\n", "")
    session = "from pyspark.sql import SparkSession\nspark = SparkSession.builder.master('local[2]').getOrCreate()\n"
    code = SPARK.replace("/shared/runs/reviews", str(work / "runs" / "reviews"))
    code = code.replace('"shards"', repr(str(work / "shards"))).replace('"predicted"', repr(str(work / "spark")))
    (work / "spark.py").write_text(session + classes + code)
    run = subprocess.run(
        [sys.executable, "spark.py"], cwd=work, capture_output=True, text=True, check=False,
        env=environment() | {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable},
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-3000:]
    frame = pd.read_parquet(work / "spark")
    assert len(frame) == SHARDS * ROWS
    assert (frame["prediction"] == [WORDS[line.split()[1]] for line in frame["text"]]).mean() > 0.9
