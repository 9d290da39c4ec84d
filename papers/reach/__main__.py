"""Distance over which a word influences a network, as described in docs/measured/complexity.md.

python -m papers.reach receptive-field --layers 6     positions that convolutions and attention see; seconds
python -m papers.reach influence --out DIR            influence and recall of four small networks; 15 minutes
python -m papers.reach influence --models RUN RUN --texts FILE --out DIR     influence in trained models
"""

from __future__ import annotations

import argparse
from pathlib import Path
from time import monotonic

from manyheads.errors import UserError
from manyheads.training.record import write_result
from papers.command import about, run
from papers.reach import receptive_field
from papers.reach.influence import Parts, draw, fading, table
from papers.reach.trained_models import influences


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m papers.reach", description=about(__doc__))
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    add = commands.add_parser("receptive-field", help="measure by gradient which positions networks see")
    add.add_argument("--layers", type=int, default=6, help="maximum number of stacked layers")
    add.add_argument("--kernel", type=int, default=3, help="kernel width of the convolutions")
    add.add_argument("--length", type=int, default=31, help="number of input positions")
    add.add_argument("--width", type=int, default=16, help="number of channels")
    add.add_argument("--out", type=Path, help="picture (.png, .svg or .pdf)")
    add.set_defaults(command=_receptive_field)
    add = commands.add_parser("influence", help="measure the influence of a word by its distance from the end")
    add.add_argument("--length", type=int, default=64, help="number of tokens in a text")
    add.add_argument("--width", type=int, default=64, help="width of the four networks")
    add.add_argument("--layers", type=int, default=4, help="number of layers of the convolutional network")
    add.add_argument("--kernel", type=int, default=5, help="kernel width of the convolutional network")
    add.add_argument("--symbols", type=int, default=8, help="number of different words in the recall task")
    add.add_argument("--steps", type=int, default=1000, help="number of training steps")
    add.add_argument("--models", nargs="+", default=(), metavar="RUN", help="trained models, instead of the networks")
    add.add_argument("--texts", type=Path, help="file with a text per line, which the trained models read")
    add.add_argument("--seed", type=int, default=1, help="seed of the random numbers")
    add.add_argument("--out", type=Path, required=True, help="folder for influence.png and result.json")
    add.set_defaults(command=_influence)
    options = parser.parse_args(arguments)
    options.command(options)


def _receptive_field(options: argparse.Namespace) -> None:
    fields = receptive_field.growth(options.layers, options.kernel, options.length, options.width)
    print(fields)
    if options.out is not None:
        receptive_field.draw(fields, options.out)


def _influence(options: argparse.Namespace) -> None:
    if bool(options.models) != (options.texts is not None):
        raise UserError("expected --models and --texts together, or neither")
    began, chance, parameters = monotonic(), None, 0
    if options.texts is None:
        nets = fading(
            options.length, options.width, options.layers, options.kernel, options.symbols, options.steps, options.seed
        )
        parts, chance, parameters = nets.parts, 1 / options.symbols, sum(nets.parameters.values())
        signature = f"mean over {options.length} distances; chance level is {chance:.3g}"
        values = {f"recalled_{kind}": sum(curve) / len(curve) for kind, curve in nets.recalled.items()}
    else:
        curves = {name: influences(name, options.texts, options.length, options.seed) for name in options.models}
        parts = {"influence on the output": curves}
        signature = f"influence at distance {options.length - 1}, relative to distance 0"
        values = {name: curve[-1] / curve[0] for name, curve in curves.items()}
    print(table(parts))
    options.out.mkdir(parents=True, exist_ok=True)
    write_result(
        options.out, recipe="text-classification/influence", overrides={"models": list(options.models)}, data={},
        metrics={name: {"value": value, "signature": signature} for name, value in values.items()},
        wall_seconds=monotonic() - began, flops=None, parameters=parameters, seed=options.seed,
        by_distance=_rounded(parts),
    )  # fmt: skip
    draw(parts, options.out / "influence.png", chance)


def _rounded(parts: Parts) -> Parts:
    """Round the influence curves to four significant digits, for result.json."""
    return {title: {name: [float(f"{value:.4g}") for value in curve] for name, curve in curves.items()}
            for title, curves in parts.items()}  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(run(main))
