"""The Transformer without each of its parts, as described in docs/papers/ablations.md.

python -m papers.ablations translation/parts data=MULTI30K [key=value ...] --out RUN    train a translator for each row
python -m papers.ablations gradients [key=value ...] --out gradients.png                draw the gradient of each layer
"""

from __future__ import annotations

from papers.ablations import gradients
from papers.ablations.recipes import RECIPES
from papers.command import run, train


def main(arguments: list[str]) -> None:
    if arguments[:1] == ["gradients"]:
        gradients.main(arguments[1:])
    else:
        train(RECIPES, arguments)


if __name__ == "__main__":
    raise SystemExit(run(main))
