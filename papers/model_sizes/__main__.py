"""Number of parameters of published models by their month, and training FLOPs of the GPT-3 models.

docs/measured/complexity.md and docs/papers/gpt3.md show these numbers.

python -m papers.model_sizes --out sizes.png
"""

from __future__ import annotations

import argparse
from pathlib import Path

from papers.command import about, run
from papers.model_sizes.sizes import GPT3_FLOPS, GPT3_TOKENS, draw, gpt3_cost, sizes


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m papers.model_sizes", description=about(__doc__))
    parser.add_argument("--out", type=Path, help="picture (.png, .svg or .pdf)")
    options = parser.parse_args(arguments)
    found = sizes()
    for size in found:
        print(f"{size.month}  {size.preset:<20} {size.parameters:>17,}")
    print(f"\nGPT-3, {GPT3_TOKENS / 1e9:.0f} billion tokens    parameters  FLOPs counted  published")
    for cost in map(gpt3_cost, GPT3_FLOPS):
        ratio = cost.counted / cost.published - 1
        print(f"{cost.preset:<20} {cost.parameters:>17,}  {cost.counted:>13.2e}  {cost.published:.2e}  {ratio:+.1%}")
    if options.out is not None:
        draw(found, options.out)


if __name__ == "__main__":
    raise SystemExit(run(main))
