"""The command `manyheads`: one verb per job. Results go to stdout, everything else to stderr.

Nothing heavy is imported before a verb needs it, so that `--help` answers at once.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module

from manyheads.cli.parser import Parser, Verbs
from manyheads.cli.reporting import exit_status, log_lines
from manyheads.errors import UserError
from manyheads.tasks.verbs import COMMANDS
from manyheads.training.distributed import distributed_context, is_rank


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a verb and return the exit status: 2 for errors that the user can fix, reported in one line."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if is_rank():
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # before torch is imported: every rank would say the same
    try:
        with log_lines():
            _run(given)
        return 0
    except (SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        return exit_status(error, "--debug" in given)


def _run(given: list[str]) -> None:
    options = _parse(given)
    options.given = given
    if sys.stdout is None:
        raise UserError("standard output is closed: there is nowhere to print results")
    if is_rank() and not hasattr(options, "processes"):
        distributed_context()  # so that one speaks for all
        raise UserError(f"{options.name} is not spread over processes: start it without torchrun")
    options.verb(options)
    sys.stdout.flush()


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser, verbs = _parsers()
    options, extra = parser.parse_known_args(arguments)
    marked = extra.index("--") if "--" in extra else len(extra)  # what follows is text, whatever it begins with
    extra, text = extra[:marked], extra[marked + 1 :]
    unknown = [word for word in extra if word.startswith("-") and word != "-"]
    if unknown:
        flags = [flag for action in verbs[options.name]._actions for flag in action.option_strings]
        close = get_close_matches(unknown[0].partition("=")[0], flags, n=1)
        verbs[options.name].error(f"unknown option {unknown[0]}" + (f": did you mean {close[0]}?" if close else ""))
    if left := extra + text:  # what argparse leaves over when options stand between: `translate MODEL --beam 5 TEXT`
        if not hasattr(options, "rest"):
            verbs[options.name].error(f"unexpected {left[0]!r}")
        options.rest += left
    return options


def _parsers() -> tuple[Parser, dict[str, Parser]]:
    from manyheads import __version__

    parser = Parser(prog="manyheads", description="Train, use and open up Transformers.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"manyheads {__version__}")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    verbs = Verbs(parser)
    for command in COMMANDS:
        import_module(f"manyheads.cli.{command}").add(verbs)
    return parser, verbs.parsers
