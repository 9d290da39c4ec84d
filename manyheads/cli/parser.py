"""Argument parser whose errors take one line and suggest the nearest valid name."""

from __future__ import annotations

import argparse
import math
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn

from manyheads.core.config import Range
from manyheads.errors import UserError, nearest


class Format(argparse.RawDescriptionHelpFormatter):
    """Help formatter that keeps the line breaks of examples and uses up to 100 columns."""

    def __init__(self, prog: str) -> None:
        width = min(100, shutil.get_terminal_size((100, 40)).columns)
        super().__init__(prog, max_help_position=26, width=width)

    def _format_args(self, action: argparse.Action, default_metavar: str) -> str:
        """Write `--ensemble MODEL ...` instead of `--ensemble MODEL [MODEL ...]`, which takes one more line."""
        if action.nargs == "+" and action.option_strings:
            return f"{action.metavar or default_metavar} ..."
        return super()._format_args(action, default_metavar)


class Parser(argparse.ArgumentParser):
    """Argument parser whose errors take one line and suggest the nearest valid name."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message} ({self.prog} --help)")

    def _check_value(self, action: argparse.Action, value: object) -> None:
        if action.choices is not None and value not in action.choices:
            hint = nearest(str(value), map(str, action.choices))
            name = action.option_strings[-1] if action.option_strings else action.metavar or action.dest
            raise argparse.ArgumentError(None, f"unknown {name} {value!r}: {hint}")


@dataclass(frozen=True)
class Positional:
    """Argument of a command without a flag.

    name   attribute of the parsed options; None: the metavar in lower case
    nargs  "?" for an optional argument, "*" or "+" for several; None: exactly one
    """

    metavar: str
    help: str
    name: str | None = None
    nargs: str | None = None

    def add_to(self, parser: argparse._ActionsContainer) -> None:
        name = self.name or self.metavar.lower()
        parser.add_argument(name, metavar=self.metavar, nargs=self.nargs, help=self.help)


@dataclass(frozen=True)
class Option:
    """Option of a command that has a value, such as `--top N`.

    convert     function that converts the text of the value; it raises argparse.ArgumentTypeError
    nargs       "+" for several values; "?" if the value may be left out
    const       value of the option if its value is left out
    repeatable  True: the values of all occurrences form a list
    """

    flag: str
    metavar: str
    help: str
    convert: Callable[[str], object] = str
    default: object = None
    choices: Sequence[str] | None = None
    required: bool = False
    nargs: str | None = None
    const: object = None
    repeatable: bool = False

    def add_to(self, parser: argparse._ActionsContainer) -> None:
        parser.add_argument(
            self.flag, metavar=self.metavar, help=self.help, type=self.convert, choices=self.choices, nargs=self.nargs,
            const=self.const, default=[] if self.repeatable else self.default, required=self.required,
            action="store" if not self.repeatable else "extend" if self.nargs else "append",
        )  # fmt: skip


@dataclass(frozen=True)
class Flag:
    """Option of a command without a value, such as `--json`. The flag `also` is another name for it."""

    flag: str
    help: str
    also: str | None = None
    default: object = False

    def add_to(self, parser: argparse._ActionsContainer) -> None:
        flags = [self.flag] if self.also is None else [self.flag, self.also]
        parser.add_argument(*flags, action="store_true", help=self.help, default=self.default)


Argument = Positional | Option | Flag
MODEL = Positional("MODEL", "a run, a model directory, or hub:OWNER/NAME[@REVISION]")
TEXTS = Positional("TEXT", "without arguments, read one text per line of stdin", "rest", nargs="*")
DEBUG = Flag("--debug", "show the traceback of an error", default=argparse.SUPPRESS)
JSON = Flag("--json", "print one JSON document")


class Verbs:
    """Parser of the command `manyheads`. Each subcommand (`train`, `translate`, ...) has a subparser."""

    def __init__(self, parser: Parser) -> None:
        self._subparsers = parser.add_subparsers(
            dest="name", metavar="VERB", required=True, parser_class=Parser, help=argparse.SUPPRESS, prog="manyheads"
        )
        self.parsers: dict[str, Parser] = {}

    def add(
        self, name: str, function: Callable[[argparse.Namespace], None], help: str, *arguments: Argument, example: str,
        usage: str | None = None,
    ) -> Parser:  # fmt: skip
        """Add the parser of a subcommand.

        function  function that runs the subcommand, called with the parsed options
        example   command line that is printed below the help text
        """
        parser = self._subparsers.add_parser(
            name, description=help, epilog=f"example:\n  {example}", usage=usage, allow_abbrev=False,
            formatter_class=Format,
        )  # fmt: skip
        parser.set_defaults(verb=function)
        for argument in (DEBUG, *arguments):
            argument.add_to(parser)
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


def number(minimum: float, maximum: float, *, above: bool = False, expected: str = "") -> Callable[[str], float]:
    """Return an argparse type for numbers from `minimum` to `maximum`.

    above     True: the minimum itself is not allowed
    expected  description of the valid numbers in error messages; empty: their range
    """
    limits = Range(minimum, maximum, above)

    def convert(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not limits.contains(value):
            raise argparse.ArgumentTypeError(f"expected {expected or f'a number {limits}'}, found {text!r}")
        return value

    return convert


POSITIVE = number(0, 10**9, above=True, expected="a positive number")
