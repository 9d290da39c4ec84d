"""A fixed set of mutated inputs: each is accepted or rejected cleanly (more: `python -m tests.stress.fuzzing`)."""

from __future__ import annotations

import gc
import json
import socket
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.stress.fuzzing.inputs import packed, unpacked, write
from tests.stress.fuzzing.judging import Judge, Watch
from tests.stress.fuzzing.mutations import mutated
from tests.stress.fuzzing.targets import NAMES, ROOMS, target

SHORT = {"model-directory": 8, "texts": 12, "images": 12}  # inputs of what takes longer
WATCH = Watch()  # of all: a hook cannot be taken away


def tried(name: str, folder: Path, times: int, most: int | None = None) -> None:
    """Of the first examples of a target, or of all."""
    gc.collect()  # objects of other tests may delete their files when collected, which would count as a finding
    chosen = target(name)
    examples = chosen.examples(folder / "made")[:most]
    judge = Judge(folder, chosen.use, (str(folder),), WATCH)
    first = [judge(example) for example in examples]
    assert not [verdict for verdict in first if verdict.finding]
    assert all(verdict.accepted for verdict in first)

    @settings(
        max_examples=times, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(st.sampled_from(examples), st.integers(0, 2**32))
    def one(example: dict[str, bytes], seed: int) -> None:
        verdict = judge(mutated(example, Random(seed)))
        assert not verdict.finding, f"{verdict.finding}\n{verdict.told}"

    one()


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("lines", "requests")])
def test_missing_input_is_a_finding(name: str, tmp_path: Path) -> None:
    tried(name, tmp_path, SHORT.get(name, 25), 5)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", NAMES)
def test_missing_inputs_are_a_finding(name: str, tmp_path: Path) -> None:
    tried(name, tmp_path, 1000 if name != "lines" else 50)


def test_make_targets_use_their_folders() -> None:
    for room, names in ROOMS.items():
        assert tuple(import_module(f"tests.stress.fuzzing.targets.{room}").TARGETS) == names


def test_forbidden_behavior_is_detected(tmp_path: Path) -> None:
    """The judge itself: each of these is a finding."""
    acts: dict[str, Callable[[Path], object]] = {
        "forbidden: compile of data": lambda folder: exec((folder / "code").read_text(), {}),
        f"forbidden: opens {tmp_path / 'outside'} to write": lambda folder: (tmp_path / "outside").write_text("x"),
        "forbidden: opens /etc/passwd to read": lambda folder: Path("/etc/passwd").read_text(),
        "forbidden: os.remove": lambda folder: (tmp_path / "made").unlink(),
        "forbidden: subprocess.Popen": lambda folder: subprocess.run(["true"], check=True),
        "forbidden: socket.getaddrinfo": lambda folder: socket.create_connection(("127.0.0.1", 9)),
        "IndexError at outside": lambda folder: [][1],
        "ValueError at outside": lambda folder: int("x"),
    }
    for finding, act in acts.items():
        found = Judge(tmp_path, act, (), WATCH)({"code": b"x = 1"}).finding
        assert found.startswith(finding), found


def test_inputs_are_single_strings_inside_their_folder(tmp_path: Path) -> None:
    files = {"a/b.txt": b"text", "c": b"", "\udce9": b"x", "../out": b"y", "/out": b"z", "link": b"@link:/etc/passwd"}
    assert unpacked(packed(files)) == files
    assert unpacked(packed(files)[:-3]).keys() == files.keys()
    write(tmp_path / "in", files)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in"]
    assert (tmp_path / "in" / "a" / "b.txt").read_text() == "text"
    assert (tmp_path / "in" / "link").is_symlink()


@pytest.mark.slow
def test_a_run_writes_its_record(tmp_path: Path) -> None:
    places = ["--findings", str(tmp_path / "found"), "--out", str(tmp_path / "out.json")]
    command = [sys.executable, "-m", "tests.stress.fuzzing", "tutorial", "--minutes", "0.1", *places]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    row = json.loads((tmp_path / "out.json").read_text())["targets"]["tutorial"]
    assert row["inputs"] == row["accepted"] + row["refused"] > 0
    assert row["findings"] == []
