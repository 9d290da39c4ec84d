"""Parts of the commands of this package: training of recipes, errors on stderr, exit status, positions in images."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping

import manyheads
from manyheads.cli.parser import Format, Parser
from manyheads.cli.reporting import exit_status, log_lines
from manyheads.cli.train import TRAIN_OPTIONS
from manyheads.cli.train import train as train_recipe
from manyheads.errors import UserError
from manyheads.runs.recipe import Recipe
from manyheads.tasks.images.predictor import ImageEncoder


def about(docstring: str | None) -> str:
    """Return the first line of a module's docstring, for the help of its command."""
    return (docstring or "").splitlines()[0]


def train(recipes: Mapping[str, Recipe], arguments: list[str]) -> None:
    """Train a recipe of a paper. The arguments are those of `manyheads train`."""
    program = next(iter(recipes.values())).program
    parser = Parser(
        prog=program, allow_abbrev=False, formatter_class=Format, description="Train a recipe of the paper.",
        usage=f"{program} RECIPE [key=value ...] [options]\n       {program} --resume RUN [key=value ...]",
        epilog="\n".join(["recipes:", *(f"  {name:<22}{recipe.summary}" for name, recipe in recipes.items())]),
    )  # fmt: skip
    parser.add_argument("recipe", metavar="RECIPE", nargs="?", help="name of a recipe")
    parser.add_argument("rest", metavar="key=value", nargs="*", help="settings such as steps=100; --dry-run lists them")
    for option in TRAIN_OPTIONS:
        option.add_to(parser)
    options = parser.parse_intermixed_args(arguments)
    if options.recipe is None and not options.resume:
        parser.error(f"expected a recipe: {', '.join(recipes)}")
    options.given = arguments
    train_recipe(options, recipes, program.removeprefix("python -m "))


def image_model(model: str) -> ImageEncoder:
    """Load a model of images."""
    predictor = manyheads.load(model)
    if not isinstance(predictor, ImageEncoder):
        raise UserError(f"{model}: expected a model of images, found {type(predictor).__name__}")
    return predictor


def pixel(text: str) -> tuple[int, ...]:
    """Return the numbers of a position "Y,X", or "T,Y,X" in a clip with frame T. For argparse."""
    try:
        place = tuple(int(number) for number in text.split(","))
    except ValueError:
        place = ()
    if len(place) not in (2, 3):
        raise argparse.ArgumentTypeError(f"expected Y,X or, in a clip, T,Y,X such as 0,12,20, found {text!r}")
    return place


def run(command: Callable[[list[str]], None], arguments: list[str] | None = None) -> int:
    """Call a command with its arguments (default: those of the process), and return the exit status.

    Like `manyheads`, it reports an error that users can fix in one line, and any other error with a traceback.
    """
    with log_lines():
        try:
            command(sys.argv[1:] if arguments is None else arguments)
        except (Exception, KeyboardInterrupt) as error:
            return exit_status(error, debug=False)
    return 0
