"""Number of parameters of published models by their month, as shown in docs/measured/complexity.md.

python -m papers.model_sizes --out sizes.png
"""

from __future__ import annotations

import argparse
from pathlib import Path

from papers.command import about, run
from papers.model_sizes.sizes import draw, sizes


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m papers.model_sizes", description=about(__doc__))
    parser.add_argument("--out", type=Path, help="picture (.png, .svg or .pdf)")
    options = parser.parse_args(arguments)
    found = sizes()
    for size in found:
        print(f"{size.month}  {size.preset:<20} {size.parameters:>17,}")
    if options.out is not None:
        draw(found, options.out)


if __name__ == "__main__":
    raise SystemExit(run(main))
