"""Print errors and log messages of the package to stderr. The library modules themselves print nothing."""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from manyheads.errors import UserError, is_out_of_memory
from manyheads.training.distributed import PEER_ENDED, failure_of_first_rank, is_rank, post_failure

PACKAGE = Path(__file__).resolve().parents[1]
LONGEST = 4000  # maximum number of characters of an error message
FAILED, BAD_INPUT, INTERRUPTED, BROKEN_PIPE = 1, 2, 130, 141  # exit statuses of the command


class _Lines(logging.Handler):
    """Log handler that prints one line per record. Warnings get a prefix, and every rank prints errors."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.ERROR:
            stream = sys.__stderr__ if is_rank() else sys.stderr
            return print(f"manyheads: {record.getMessage()}", file=stream, flush=True)
        prefix = "warning: " if record.levelno == logging.WARNING else ""
        print(f"{prefix}{record.getMessage()}", file=sys.stderr)


@contextmanager
def log_lines() -> Iterator[None]:
    """Context manager that prints the log messages of the package (level INFO and above) during the `with` block."""
    logger, handler = logging.getLogger("manyheads"), _Lines()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def exit_status(error: BaseException, debug: bool) -> int:
    """Report an error on stderr and return the exit status of the command.

    Errors that users can fix take one line: `UserError`, errors of the operating system, too little memory, and texts
    that the library `tokenizers` cannot read. All other errors are bugs and are printed with their traceback.
    """
    if isinstance(error, BrokenPipeError):  # The program that reads the output of this command has closed the pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    if isinstance(error, KeyboardInterrupt):
        return _report(error, INTERRUPTED, str(error) or "interrupted", debug)
    if isinstance(error, OSError) and (error.errno is not None or type(error) is not OSError) and not _is_own(error):
        place = f"{error.filename}: " if error.filename else ""
        return _report(error, BAD_INPUT, f"{place}{error.strerror or error}", debug)
    if isinstance(error, UserError):
        return _report(error, BAD_INPUT, str(error), debug)
    if isinstance(error, Exception) and is_out_of_memory(error):
        message = "out of memory: use a smaller model, smaller batches or shorter texts"
        return _report(error, FAILED, message, debug)
    # The library `tokenizers` raises plain Exception; it raises PanicException if its Rust code panics. Compiled code
    # has no frame in the traceback, so the last frame is the call in this package.
    if (type(error) is Exception and _is_raised_here(error)) or type(error).__name__ == "PanicException":
        return _report(error, BAD_INPUT, f"the model's tokenizer failed on a text: {error}", debug)
    message = f"this is a bug in manyheads, please report it: {type(error).__name__}: {error}"
    return _report(error, FAILED, message, debug=True)


def _is_own(error: OSError) -> bool:
    """Return True if a file of this package is the cause, such as a missing asset of the wheel."""
    try:
        return isinstance(error.filename, str) and Path(error.filename).resolve().is_relative_to(PACKAGE)
    except (OSError, RuntimeError):  # The working directory has been removed, or links lead in a circle.
        return False


def _is_raised_here(error: Exception) -> bool:
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and Path(frames[-1].filename).resolve().is_relative_to(PACKAGE)


def _report(error: BaseException, status: int, message: str, debug: bool) -> int:
    if debug:
        traceback.print_exception(error, file=sys.__stderr__ if is_rank() else None)
    _print_once(_printable(message), quietly=status == INTERRUPTED)
    return status


def _print_once(message: str, *, quietly: bool) -> None:
    """Print an error on one or more ranks.

    Ranks other than 0 print nothing if rank 0 reports the same error, or if rank 0 has caused the error.

    quietly  True: never print on ranks other than 0, because rank 0 certainly reports the error
    """
    if not is_rank() or os.environ["RANK"] == "0":
        print("manyheads:", message, file=sys.stderr)
        post_failure(message)
    elif not quietly and (first := failure_of_first_rank()) != message and not (first and message == PEER_ENDED):
        print(f"manyheads: rank {os.environ['RANK']}: {message}", file=sys.__stderr__)


def _printable(message: str) -> str:
    """Return a text as one line of limited length, without control characters.

    An error may quote a file, and control characters in the quotation could change the state of the user's
    terminal.
    """
    line = "".join(c if c.isprintable() else repr(c)[1:-1] for c in message.replace("\n", " "))
    return line if len(line) <= LONGEST else f"{line[:LONGEST]}..."
