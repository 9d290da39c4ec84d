"""How results are printed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def document(value: Any) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))


def table(rows: Iterable[Sequence[object]]) -> None:
    """Aligned columns; those that hold nothing but numbers below their heading are flush right."""
    cells = [[f"{c:,}" if isinstance(c, int) else str(c) for c in row] for row in rows]
    columns = list(zip(*cells, strict=True))
    right = [all(re.fullmatch(r"[-+\d.,]*", cell) for cell in column[1:] or column) for column in columns]
    widths = [max(map(len, column)) for column in columns]
    for row in cells:
        aligned = [c.rjust(w) if r else c.ljust(w) for c, w, r in zip(row, widths, right, strict=True)]
        print("  ".join(aligned).rstrip())


def print_metrics(metrics: Mapping[str, Mapping[str, Any]]) -> None:
    table((name, f"{m['value']:.4f}", m.get("signature", "")) for name, m in metrics.items())
