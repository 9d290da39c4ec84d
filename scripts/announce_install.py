"""`python scripts/announce_install.py LOCK`: say what `pip install -r LOCK` will install, before it does.

The script names the number of packages, the build of PyTorch that pip selects, and the size. It uses only the standard
library and pip.
"""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

CPU = "its CPU build: 0.3 GB to download in all, 1.3 GB installed"
CUDA = (
    "its CUDA build: several GB with NVIDIA's libraries. Without a GPU, stop here and install the CPU build first "
    "(docs/how-to/install.md)"
)


def build(requirement: str) -> str:
    """Return a description of the build of PyTorch that pip selects, or an empty text if pip cannot say it."""
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--no-deps", "--quiet",
               "--disable-pip-version-check", "--report", "-", requirement]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        (found,) = json.loads(done.stdout)["install"]
        needs = found["metadata"].get("requires_dist", [])
    except (ValueError, KeyError):
        return ""
    return CUDA if any(name.startswith(("nvidia", "cuda")) for name in needs) else CPU


def main(lock: Path) -> None:
    pins = [line for line in lock.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    (torch,) = (pin for pin in pins if pin.startswith("torch=="))
    try:
        if version("torch").split("+")[0] == torch.partition("==")[2]:
            return
    except PackageNotFoundError:
        pass
    about = build(torch)
    print(f"make: installing {len(pins)} packages into .venv, with PyTorch{about and f' in {about}'}", file=sys.stderr)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
