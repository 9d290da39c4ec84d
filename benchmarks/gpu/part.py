"""`python -m benchmarks.gpu.part NAME --device D --seconds S --rates JSON --out FILE`: one part, in this process."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from benchmarks.ceilings import Ceilings
from benchmarks.gpu.session import Session

# what measures a part, and the share of the total time that it may take
PARTS = {
    "machine": ("device:measure", 3.0),
    "train-gpt2": ("training:gpt2", 18.0),
    "decode-gpt2": ("decoding:gpt2", 26.0),
    "train-bert": ("training:bert", 11.0),
    "train-vit": ("training:vit", 11.0),
    "train-translation": ("training:translation", 12.0),
    "decode-translation": ("decoding:translation", 10.0),
    "encode-bert": ("encoding:bert", 6.0),
    "encode-vit": ("encoding:vit", 6.0),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=PARTS)
    parser.add_argument("--device", required=True)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--rates", required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    until = time.monotonic() + options.seconds
    memory, products = json.loads(options.rates)
    module, _, name = PARTS[options.name][0].partition(":")
    measure: Callable[[Session], None] = getattr(import_module(f"benchmarks.gpu.{module}"), name)
    measure(Session(options.device, options.tiny, until, options.out, Ceilings(memory, products)))


if __name__ == "__main__":
    main()
