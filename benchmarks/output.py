"""Output of benchmarks that measure only this package, in one run: comparisons of models or methods."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any


def command(about: str | None, repeats: int, measure: Callable[[int, int | None], dict[str, Any]]) -> None:
    """The command line of a bench that takes no data: print what `measure(repeats, threads)` finds, and keep it."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=repeats)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    tell(measure(options.repeats, options.threads), options.out)


def tell(measured: dict[str, Any], out: Path | None) -> None:
    """Print what was found, and write it to a file."""
    text = json.dumps(measured, indent=1)
    print(text)
    if out is not None:
        out.write_text(text + "\n", encoding="utf-8")
