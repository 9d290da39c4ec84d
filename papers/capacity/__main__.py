"""Loss of language models over their size, as described in docs/papers/capacity.md.

python -m papers.capacity language-modeling/capacity [data=FILE] [key=value ...] --out RUN    train fifteen models
"""

from __future__ import annotations

from papers.capacity.recipes import RECIPES
from papers.command import run, train


def main(arguments: list[str]) -> None:
    train(RECIPES, arguments)


if __name__ == "__main__":
    raise SystemExit(run(main))
