"""Memory that a process keeps or returns to the system."""

import platform
import subprocess
import sys

import pytest
import torch

from manyheads.core import runtime


def test_freed_memory_is_reused() -> None:
    """Blocks of one step are those of the next: no page is cleared twice. Afterwards all of it goes back."""
    resource = pytest.importorskip("resource")
    if platform.libc_ver()[0] != "glibc":
        pytest.skip("another C library")

    def faults(steps: int) -> int:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(steps):
            torch.zeros(2**24).add_(1)  # 64 MB: 16,384 pages of 4 kB
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    with runtime.retain_memory():
        faults(1)
        kept = min(faults(8) for _ in range(5))  # a system short of memory may take pages back in between
    assert kept < faults(8) / 4


HELD = """
import torch
from manyheads.core import runtime
with runtime.retain_memory(low_memory={low_memory}):
    torch.ones(2**23)  # freed: glibc by itself would serve all blocks up to this size from its heap from now on
    before = runtime.resident_memory()
    blocks = [(torch.ones(2**22), torch.ones(2**10)) for _ in range(16)]
    small = [block for _, block in blocks]
    del blocks
    print(runtime.resident_memory() - before)
"""


@pytest.mark.parametrize("low_memory", [True, False])
def test_large_blocks_are_released_if_memory_is_short(low_memory: bool) -> None:
    """Also where small ones that are still in use lie between them; in a process whose heap has no holes yet."""
    if platform.libc_ver()[0] != "glibc":
        pytest.skip("another C library")
    command = [sys.executable, "-c", HELD.format(low_memory=low_memory)]
    held = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert (held < 2**25) == low_memory


def test_reused_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    if platform.libc_ver()[0] != "glibc":
        pytest.skip("another C library")
    monkeypatch.setattr(runtime, "MAX_GROWTH", 1.05)
    block = 2**29  # bytes
    with runtime.retain_memory() as tidy:
        tidy()
        needed = runtime.resident_memory()
        torch.zeros(block // 4)
        assert runtime.resident_memory() > needed + block / 2
        tidy()
        assert runtime.resident_memory() < needed + block / 4
