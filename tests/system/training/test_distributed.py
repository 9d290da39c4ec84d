"""Runs on several processes, compared with the same run on one."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from shutil import copytree, which
from typing import Any

import numpy as np
import pytest

from manyheads.cli import reporting
from manyheads.errors import UserError
from manyheads.training.distributed import PEER_ENDED
from manyheads.training.run_directory import run_status
from tests.paths import ROOT
from tests.stress.survival.ranks import processes
from tests.support.families import FAMILIES, STEPS, write_data

MANYHEADS = (sys.executable, "-m", "manyheads")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run")
RUN = (
    "train", "translation", "size=1000", "vocabulary=400", "batch_tokens=2000", "model.width=64", "threads=1",
    "model.encoder_layers=2", "model.decoder_layers=2", "training.log_every=1", "training.checkpoint_every=10",
    "training.average=1", "training.schedule=constant", "training.learning_rate=0.001",
)  # fmt: skip
LIMIT = 900.0  # seconds; the machine may be busy


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT), **more}


def called(*command: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=3600, check=False, **options
    )


def manyheads(*arguments: object) -> subprocess.CompletedProcess[str]:
    return called(*MANYHEADS, *map(str, arguments))


def losses(out: Path) -> list[float]:
    entries = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    training = {entry["step"]: entry["loss"] for entry in entries if "loss" in entry}
    assert list(training) == [*range(1, len(training) + 1)]
    return [*training.values()]


# parts of a batch for each rank


# the same losses


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Sequence[str]], tuple[Path, Path]]:
    """Data, and the runs of one process, by precision and names."""
    folder = tmp_path_factory.mktemp("alone")
    write_data(folder)

    def out(dtype: str, names: Sequence[str]) -> tuple[Path, Path]:
        for name in names:
            if name == "gpt-classifier" and not (folder / "gpt2").exists():
                copytree(out("float32", ["gpt2"])[1] / "gpt2", folder / "gpt2")
        missing = [name for name in names if not (folder / dtype / name).exists()]
        if missing:
            where = str(folder), str(folder / dtype)
            made = called(sys.executable, "-m", "tests.support.families", *where, dtype, "-", *missing)
            assert made.returncode == 0, made.stderr
        return folder, folder / dtype

    return out


def compare(alone: Any, out: Path, names: Sequence[str], dtype: str, world: int, shard: str) -> None:
    data, expected = alone(dtype, names)
    several = *TORCHRUN, "--standalone", f"--nproc-per-node={world}"
    launched = called(*several, "-m", "tests.support.families", str(data), str(out), dtype, shard, *names)
    assert launched.returncode == 0, launched.stderr
    runs = [path.relative_to(out).parent for name in names for path in (out / name).rglob("metrics.jsonl")]
    assert len(runs) >= len(names)
    for run in runs:
        found, wanted = losses(out / run), losses(expected / run)
        assert len(found) == STEPS
        np.testing.assert_allclose(found, wanted, rtol=1e-5 if dtype == "float32" else 1e-12, err_msg=str(run))
        assert wanted[-1] != wanted[0]


def test_two_processes_equal_one(alone: Any, tmp_path: Path) -> None:
    compare(alone, tmp_path, ["text-classifier"], "float32", 2, "-")


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("shard", ["-", "shard"])
@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_family_has_equal_losses_on_one_and_more_processes(
    alone: Any, tmp_path: Path, dtype: str, world: int, shard: str
) -> None:
    compare(alone, tmp_path, [*FAMILIES], dtype, world, shard)


FAULTY = """
import sys
from pathlib import Path
import manyheads.training.loop as loop
from manyheads.training.distributed import distributed_context
from tests.support import families

train_step = loop.train_step

def faulty(session, group):
    objective, loss = session.objective, session.objective.loss
    if session.counters.step == 10 and distributed_context().rank == 1:
        objective.loss = lambda batch: loss(batch)._replace(total=loss(batch).total * float("nan"))
    try:
        return train_step(session, group)
    finally:
        objective.loss = loss

loop.train_step = faulty
families.score_nothing()
families.run("text-classifier", Path(sys.argv[1]), Path(sys.argv[1]), sys.argv[2], skip_nonfinite=1)
"""


def test_a_sharded_model_with_tied_embeddings_continues_after_it_was_saved(tmp_path: Path) -> None:
    settings = (*RUN, "training.steps=6", "training.keep_every=1")
    sharded = manyheads(*settings, "training.shard=true", "--processes", "2", "--out", tmp_path / "sharded")
    assert sharded.returncode == 0, sharded.stderr
    assert manyheads(*settings, "--out", tmp_path / "alone").returncode == 0
    np.testing.assert_allclose(losses(tmp_path / "sharded"), losses(tmp_path / "alone"), rtol=1e-4)


@pytest.mark.parametrize("shard", ["-", pytest.param("shard", marks=pytest.mark.slow)])
def test_a_non_finite_loss_on_one_rank_is_skipped_by_all(tmp_path: Path, shard: str) -> None:
    write_data(tmp_path)
    (tmp_path / "faulty.py").write_text(FAULTY)
    several = *TORCHRUN, "--standalone", "--nproc-per-node=2", str(tmp_path / "faulty.py"), str(tmp_path), shard
    ended = called(*several)
    assert ended.returncode == 0, ended.stderr
    assert (
        "step 11: not finite (gradient norm nan); first bad tensor: the loss, on rank 1; skipped, 1 of 1 allowed"
        in (ended.stderr)
    )
    entries = [json.loads(line) for line in (tmp_path / "text-classifier" / "metrics.jsonl").read_text().splitlines()]
    found = {entry["step"]: entry["loss"] for entry in entries if "loss" in entry}
    assert [*found] == [step for step in range(1, STEPS + 1) if step != 11]
    assert np.isfinite([*found.values()]).all()
    assert [entry["step"] for entry in entries if "skipped" in entry] == [11]


# life and death


@pytest.mark.parametrize(
    ("of_rank_0", "told"),
    [("no such file", ""), (None, f"manyheads: rank 1: {PEER_ENDED}\n")],
)
def test_errors_caused_by_rank_0_are_printed_once(
    of_rank_0: str | None, told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr(reporting, "is_rank", lambda: True)
    monkeypatch.setattr(reporting, "failure_of_first_rank", lambda: of_rank_0)
    monkeypatch.setattr(sys, "__stderr__", sys.stderr)
    assert reporting.exit_status(UserError(PEER_ENDED), debug=False) == 2
    assert capsys.readouterr().err == told


def wait_for(what: Callable[[], Any], limit: float = LIMIT) -> Any:
    end = time.monotonic() + limit
    while not (found := what()):
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.1)
    return found


def steps(out: Path) -> list[int]:
    return sorted(int(path.stem.split("-")[1]) for path in (out / "state").glob("checkpoint-*.json"))


class Started(subprocess.Popen[str]):
    def __init__(self, *command: str, **more: str) -> None:
        super().__init__(
            command, cwd=ROOT, env=environment(**more), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def ended(self, limit: float = LIMIT) -> str:
        """Wait for the end of the process and return its stderr."""
        return self.communicate(timeout=limit)[1]


@pytest.fixture
def started() -> Iterator[Callable[..., Started]]:
    processes = []

    def start(*command: str, **more: str) -> Started:
        processes.append(Started(*command, **more))
        return processes[-1]

    yield start
    for process in processes:
        if process.poll() is None:
            process.terminate()
            process.communicate()


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("asked", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_leaves_a_checkpoint_for_any_number_of_processes(
    started: Any, tmp_path: Path, asked: signal.Signals
) -> None:
    out, whole = tmp_path / "out", tmp_path / "whole"
    process = started(*MANYHEADS, *RUN, "training.steps=60", "--processes", "2", "--out", str(out))
    wait_for(lambda: steps(out)[1:])
    process.send_signal(asked)
    said = process.ended()
    assert process.returncode == 130, said
    assert said.count("wrote a checkpoint; resume with: ") == 1, said
    assert "--processes 2" in said
    at = steps(out)[-1]
    assert at == len(losses(out)), "the last step is the checkpoint's"
    assert run_status(out) == "unfinished"
    for budget, more in ((70, ["--processes", "3", "training.shard=true"]), (80, [])):  # FSDP2, then one process alone
        resumed = manyheads(*RUN, f"training.steps={budget}", *more, "--out", out, "--resume")
        assert resumed.returncode == 0, resumed.stderr
        assert resumed.stderr.count("resuming after step") == 1
        assert len(losses(out)) == budget
        (out / "result.json").unlink()
    expected = manyheads(*RUN, "training.steps=80", "--out", whole)
    assert expected.returncode == 0, expected.stderr
    np.testing.assert_allclose(losses(out), losses(whole), rtol=1e-4)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("victim", [0, 1])
def test_a_dead_process_stops_the_others_and_is_named(started: Any, tmp_path: Path, victim: int) -> None:
    out = tmp_path / "out"
    process = started(*MANYHEADS, *RUN, "training.steps=5000", "--processes", "2", "--out", str(out))
    wait_for(lambda: steps(out)[1:])
    pids = processes(out)
    assert set(pids) == {0, 1}
    os.kill(pids[victim], signal.SIGKILL)
    began = time.monotonic()
    said = process.ended(60)
    assert time.monotonic() - began < 60
    assert process.returncode == 1
    assert f"rank {victim} (process {pids[victim]}) was killed by SIGKILL" in said
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids.values()), 60)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_dead_process_stops_a_translation(started: Any, tmp_path: Path) -> None:
    model = tmp_path / "model"
    assert manyheads(*RUN, "training.steps=10", "--out", model).returncode == 0
    process = started(*MANYHEADS, "translate", str(model), *["March 5, 2031"] * 50_000, "--processes", "2")
    pids = wait_for(lambda: len(found := processes(model)) == 2 and found)
    time.sleep(10)
    os.kill(pids[1], signal.SIGKILL)
    printed, told = process.communicate(timeout=60)
    assert (process.returncode, printed) == (1, "")
    assert f"rank 1 (process {pids[1]}) was killed by SIGKILL" in told
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids.values()), 60)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_torchrun_restarts_from_the_last_checkpoint(started: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = started(
        *TORCHRUN, "--standalone", "--nproc-per-node=2", "--max-restarts=1", "-m", "manyheads", *RUN,
        "training.steps=300", "--out", str(out),
    )  # fmt: skip
    wait_for(lambda: steps(out)[1:])
    os.kill(processes(out)[1], signal.SIGKILL)
    said = process.ended()
    assert process.returncode == 0, said
    assert "resuming after step" in said
    assert len(losses(out)) == 300
    assert run_status(out) == "finished"


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.skipif(os.geteuid() != 0 or which("ip") is None, reason="network namespaces are the superuser's")
def test_two_services_share_one_listing(tmp_path: Path, started: Any) -> None:
    """Two network namespaces with an address each, and a cable between them."""
    out, hosts = tmp_path / "out", {"manyheads-a": "10.203.0.1", "manyheads-b": "10.203.0.2"}

    def ip(*words: str) -> None:
        made = called("ip", *words)
        if made.returncode:
            pytest.skip(f"no network namespaces here: {made.stderr.strip()}")

    try:
        for host in hosts:
            ip("netns", "add", host)
        ip("link", "add", "manyheads-a", "type", "veth", "peer", "name", "manyheads-b")
        for host, address in hosts.items():
            ip("link", "set", host, "netns", host)
            ip("-n", host, "address", "add", f"{address}/24", "dev", host)
            ip("-n", host, "link", "set", host, "up")
            ip("-n", host, "link", "set", "lo", "up")

        def launch(number: int, host: str) -> Started:
            process = started(
                "ip", "netns", "exec", host, *TORCHRUN, "--nnodes=2", f"--node-rank={number}", "--nproc-per-node=1",
                f"--master-addr={hosts['manyheads-a']}", "--master-port=29511", f"--local-addr={hosts[host]}",
                "-m", "manyheads", *RUN, "training.steps=5000", "--out", str(out), GLOO_SOCKET_IFNAME=host,
            )  # fmt: skip
            assert isinstance(process, Started)
            return process

        both = [launch(number, host) for number, host in enumerate(hosts)]
        wait_for(lambda: steps(out)[1:] or any(process.poll() is not None for process in both))
        assert steps(out)[1:], [process.ended() for process in both]
        ip("-n", "manyheads-b", "link", "set", "manyheads-b", "down")  # the second machine is lost
        began = time.monotonic()
        said = both[0].ended(90)
        assert time.monotonic() - began < 60
        assert "no heartbeat from rank 1 for 40 seconds" in said
        assert both[1].ended(90) is not None
    finally:
        for host in hosts:
            called("ip", "netns", "delete", host)
