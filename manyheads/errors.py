"""Errors that users can fix. All other exceptions are bugs and keep their traceback."""

from collections.abc import Iterator
from contextlib import contextmanager


class UserError(ValueError):
    """Invalid input, setting or file that the user can correct.

    The message is one line: the problem, its place (file and line), and a remedy. The command line prints it and exits
    with status 2. It is a `ValueError`, so that Python callers may catch either.
    """


class MissingExtra(UserError):
    """Missing library of an optional extra."""


@contextmanager
def extra(name: str, purpose: str) -> Iterator[None]:
    """Raise MissingExtra with the extra's name if an import in the `with` block fails."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise MissingExtra(f"{purpose} needs {error.name}: pip install 'manyheads[{name}]'") from None
