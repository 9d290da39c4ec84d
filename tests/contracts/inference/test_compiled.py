"""Compiled kernels are stored on disk, and loaded without Numba where they fit this processor."""

import ast
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("llvmlite", reason="it is installed with Numba, which compiles the kernels")

from manyheads.inference.kernels import compiled

LOGITS = np.random.default_rng(0).normal(size=(3, 40)).astype(np.float32)


def log_sums() -> Any:
    """Log-sum-exp of LOGITS by the smallest kernel, as in a new process."""
    maxima, sums = np.zeros((3, 4), np.float32), np.zeros(3, np.float32)
    kernel = compiled.Kernel("reducing.reduce_rows")
    kernel(0, 1, 0, LOGITS.copy(), np.zeros(0, np.int64), np.int64(10), maxima, sums)
    assert np.array_equal(maxima, LOGITS.reshape(3, 4, 10).max(-1))
    return sums


@pytest.fixture
def compilations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kernels that were compiled since; the cache is a new directory."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    from manyheads.inference.kernels import compiling

    names: list[str] = []
    compile_kernel = compiling.compile_kernel

    def counted(name: str, arguments: Any) -> bytes:
        names.append(name)
        return compile_kernel(name, arguments)

    monkeypatch.setattr(compiling, "compile_kernel", counted)
    return names


def cut(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def garble(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize("damage", [cut, garble, lambda file: os.truncate(file, 0)])
def test_stored_code_is_used_unless_it_is_damaged(
    damage: Callable[[Path], None], compilations: list[str], tmp_path: Path
) -> None:
    wanted = np.log(np.exp(LOGITS).sum(-1))
    np.testing.assert_allclose(log_sums(), wanted, rtol=1e-5)
    assert len(compilations) == 1
    np.testing.assert_allclose(log_sums(), wanted, rtol=1e-5)
    assert len(compilations) == 1
    (file,) = (tmp_path / "manyheads" / "kernels").iterdir()
    content = file.read_bytes()
    damage(file)
    np.testing.assert_allclose(log_sums(), wanted, rtol=1e-5)
    assert len(compilations) == 2
    assert len(file.read_bytes()) == len(content)


def test_code_of_another_processor_is_not_used(compilations: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = log_sums()
    monkeypatch.setattr(compiled.binding, "get_host_cpu_name", lambda: "another")
    assert np.array_equal(log_sums(), wanted)
    assert len(compilations) == 2


def test_kernels_run_without_a_writable_cache(
    compilations: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", os.devnull)
    with caplog.at_level("INFO"):
        np.testing.assert_allclose(log_sums(), np.log(np.exp(LOGITS).sum(-1)), rtol=1e-5)
    assert compilations
    assert "compiled kernels are not stored" in caplog.text


def test_stored_code_is_loaded_without_numba(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    wanted = log_sums()
    code = "import sys; sys.modules['numba'] = None; from tests.contracts.inference import test_compiled as t"
    code += "; import manyheads.inference.stack; print(t.log_sums().tolist())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == str(wanted.tolist()), done.stderr


def test_the_version_covers_all_that_kernels_import() -> None:
    """A change of any of these files leads to a new compilation. Other modules would leave stale machine code."""
    others = set()
    for file in Path(compiled.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("manyheads"):
                others |= {node.module} if not (node.module or "").startswith("manyheads.inference.kernels") else set()
    assert others == {"manyheads.files"}  # it reads and writes the machine code
