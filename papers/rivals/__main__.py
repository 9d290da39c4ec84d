"""Table 2 of Vaswani et al. 2017 with small models, as described in docs/papers/rivals.md.

python -m papers.rivals translation/rivals data=MULTI30K [key=value ...] --out RUN    train and compare the models
"""

from __future__ import annotations

from papers.command import run, train
from papers.rivals.recipes import RECIPES


def main(arguments: list[str]) -> None:
    train(RECIPES, arguments)


if __name__ == "__main__":
    raise SystemExit(run(main))
