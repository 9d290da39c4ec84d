"""The command `manyheads`. Results are written to stdout, everything else to stderr.

Each subcommand, such as `train` or `translate`, imports its dependencies only when it runs, so that `--help` is fast.
In the code, a subcommand is called a "verb".
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from manyheads.cli.parser import Format, Parser, Verbs
from manyheads.cli.reporting import exit_status, log_lines
from manyheads.errors import UserError, similar
from manyheads.tasks.verbs import COMMANDS, GROUPS
from manyheads.training.distributed import distributed_context, is_rank


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status.

    An error that the user can fix prints one line and returns status 2.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    if is_rank():
        # The warning filter must be set before torch is imported; otherwise every rank prints the same warnings.
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
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
        raise UserError("standard output is closed: results cannot be printed")
    if is_rank() and "processes" not in options:
        # Join the process group of distributed training before the subcommand runs, so that only rank 0 prints an
        # error.
        distributed_context()
        raise UserError(f"{options.name} runs in one process: start it without torchrun")
    options.verb(options)
    sys.stdout.flush()


def _parse(arguments: list[str]) -> argparse.Namespace:
    if arguments[:1] == ["help"]:
        arguments = [*arguments[1:], "--help"]
    # Build only the parser of the given command. Help, and the error of an unknown command, need all parsers.
    parser, verbs = _parsers(arguments[:1] if arguments and arguments[0] in COMMANDS else COMMANDS)
    options, extra = parser.parse_known_args(arguments)
    # Arguments after "--" are input text, even if they begin with a dash.
    marked = extra.index("--") if "--" in extra else len(extra)
    extra, text = extra[:marked], extra[marked + 1 :]
    unknown = [word for word in extra if word.startswith("-") and word != "-"]
    if unknown:
        flags = [flag for action in verbs[options.name]._actions for flag in action.option_strings]
        close = similar(unknown[0].partition("=")[0], flags)
        verbs[options.name].error(f"unknown option {unknown[0]}" + (f": did you mean {close}?" if close else ""))
    # argparse does not assign positional arguments that follow options, as in `translate MODEL --beam 5 TEXT`.
    if left := extra + text:
        if "rest" not in options:
            verbs[options.name].error(f"unexpected {left[0]!r}")
        options.rest += left
    return options


def _parsers(commands: Sequence[str] = COMMANDS) -> tuple[Parser, dict[str, Parser]]:
    from manyheads import __version__

    parser = Parser(
        prog="manyheads", description="Train, use, inspect and deploy Transformers.", allow_abbrev=False,
        formatter_class=Format, usage="manyheads VERB ... | --version", add_help=False,
    )  # fmt: skip
    # The last line of the help explains `manyheads help`, the usage names --version, and the help of each verb lists
    # --debug. Without a list of options, all verbs fit on the screen.
    parser.add_argument("-h", "--help", action="help", help=argparse.SUPPRESS)
    parser.add_argument("--version", action="version", version=f"manyheads {__version__}", help=argparse.SUPPRESS)
    parser.add_argument("--debug", action="store_true", help=argparse.SUPPRESS)
    verbs = Verbs(parser)
    for command in commands:
        import_module(f"manyheads.cli.{command}").add(verbs)
    parser.epilog = "\n\n".join(
        "\n".join(
            [f"{group}:", *(f"  {name:<12}{verbs.parsers[name].description}" for name in names if name in commands)]
        )
        for group, names in GROUPS.items()
    )
    parser.epilog += "\n\nmanyheads help VERB shows the options of a verb and an example"
    return parser, verbs.parsers
