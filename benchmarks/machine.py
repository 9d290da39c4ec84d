"""The machine of a record: its kind, and the features of its processor that decide what is fast on it."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from pathlib import Path

# names of the instructions in /proc/cpuinfo, on x86 and on ARM
FEATURES = (
    "avx2", "avx512f", "avx512_vnni", "avx512_bf16", "avx_vnni", "amx_tile", "amx_bf16", "amx_int8",
    "asimd", "bf16", "i8mm",
)  # fmt: skip
# kinds of machines, whose records are never mixed; those in lab/results/bench lie in folders of these names
KINDS: Mapping[str, str] = {
    "gpu": "GPU", "amx": "AMX", "avx512": "AVX-512 without AMX", "avx2": "AVX2 without AVX-512", "arm": "ARM",
    "other": "Other processors",
}  # fmt: skip


def features(cpuinfo: Path = Path("/proc/cpuinfo")) -> list[str]:
    """Return those of FEATURES that the processor has; none where the system does not tell."""
    if not cpuinfo.is_file():
        return []
    lines = cpuinfo.read_text(encoding="utf-8").splitlines()
    flags = {flag for line in lines if line.startswith(("flags", "Features")) for flag in line.split()}
    return [name for name in FEATURES if name in flags]


def kind(found: Sequence[str] | None = None) -> str:
    """Return the kind of a processor with these features, by default of this one."""
    found = features() if found is None else found
    for feature, name in (("amx_tile", "amx"), ("avx512f", "avx512"), ("avx2", "avx2"), ("asimd", "arm")):
        if feature in found:
            return name
    return "other"


def today() -> str:
    return datetime.date.today().isoformat()
