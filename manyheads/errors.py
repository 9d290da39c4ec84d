"""The error that users can fix. Everything else is a bug and keeps its traceback."""

from collections.abc import Iterator
from contextlib import contextmanager


class UserError(ValueError):
    """An input, a setting or a file that the user can correct.

    The message is one line: what is wrong, where (file and line), and what to do. The command line prints it and exits
    with status 2. It is a `ValueError`, so that Python callers may catch either.
    """


class MissingExtra(UserError):
    """A library of an extra that is not installed."""


@contextmanager
def extra(name: str, purpose: str) -> Iterator[None]:
    """Raise MissingExtra, which names the extra, if an import within fails."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise MissingExtra(f"{purpose} needs {error.name}: pip install 'manyheads[{name}]'") from None
