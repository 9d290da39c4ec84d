"""Argument parser whose errors take one line and suggest the nearest valid name."""

from __future__ import annotations

import argparse
import math
import shutil
from collections.abc import Callable
from typing import Any, NoReturn

from manyheads.errors import UserError, nearest

MODEL = ("MODEL", "a run, a model directory, or hub:OWNER/NAME[@REVISION]")


class Format(argparse.RawDescriptionHelpFormatter):
    """Help formatter that keeps the line breaks of examples and uses up to 100 columns."""

    def __init__(self, prog: str) -> None:
        width = min(100, shutil.get_terminal_size((100, 40)).columns)
        super().__init__(prog, max_help_position=26, width=width)


class Parser(argparse.ArgumentParser):
    """Argument parser whose errors take one line and suggest the nearest valid name."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message} ({self.prog} --help)")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            hint = nearest(str(value), map(str, action.choices))
            name = action.option_strings[-1] if action.option_strings else action.metavar or action.dest
            raise argparse.ArgumentError(None, f"unknown {name} {value!r}: {hint}")


class Verbs:
    """Parser of the command `manyheads`. Each subcommand (`train`, `translate`, ...) has a subparser."""

    def __init__(self, parser: Parser) -> None:
        self._subparsers = parser.add_subparsers(
            dest="name", metavar="VERB", required=True, parser_class=Parser, help=argparse.SUPPRESS, prog="manyheads"
        )
        self.parsers: dict[str, Parser] = {}

    def add(
        self, name: str, function: Callable[[argparse.Namespace], None], help: str, *positionals: tuple[str, str],
        as_json: bool = False, example: str,
    ) -> Parser:  # fmt: skip
        """Add the parser of a subcommand.

        function     function that runs the subcommand, called with the parsed options
        positionals  name and help text of each positional argument
        as_json      True if the subcommand has the option --json
        example      command line that is printed below the help text
        """
        parser = self._subparsers.add_parser(
            name, description=help, epilog=f"example:\n  {example}", allow_abbrev=False, formatter_class=Format
        )
        parser.set_defaults(verb=function)
        parser.add_argument(
            "--debug", action="store_true", default=argparse.SUPPRESS, help="show the traceback of an error"
        )
        if as_json:
            parser.add_argument("--json", action="store_true", help="print one JSON document")
        for metavar, text in positionals:
            parser.add_argument(metavar.lower(), metavar=metavar, help=text)
        self.parsers[name] = parser
        return parser


def whole(least: int, most: int) -> Callable[[str], int]:
    """Return an argparse type for integers from `least` to `most`.

    It rejects wrong values before anything is loaded.
    """

    def convert(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"expected a whole number from {least} to {most}, found {text!r}")
        return value

    return convert


def number(expected: str, fits: Callable[[float], bool]) -> Callable[[str], float]:
    """Return an argparse type for finite numbers that satisfy the function `fits`.

    `expected` describes the valid numbers in error messages.
    """

    def convert(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and fits(value)):
            raise argparse.ArgumentTypeError(f"expected {expected}, found {text!r}")
        return value

    return convert
