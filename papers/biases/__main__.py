"""Students and teachers of Abnar, Dehghani & Zuidema 2020, as described in docs/papers/biases.md.

python -m papers.biases agreement [key=value ...] --out RUN            an LSTM teaches a Transformer
python -m papers.biases moved-digits data=MNIST [key=value ...] --out RUN    a ResNet teaches a ViT
"""

from __future__ import annotations

from papers.biases.recipes import RECIPES
from papers.command import run, train


def main(arguments: list[str]) -> None:
    train(RECIPES, arguments)


if __name__ == "__main__":
    raise SystemExit(run(main))
