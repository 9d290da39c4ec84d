"""Exceptions for problems that users can fix. Every other exception is a bug and is shown with its traceback."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches


class UserError(ValueError):
    """Invalid input, setting or file that the user can correct.

    The message is one line: the problem, its place (file and line), and a remedy. The command line prints the
    message and exits with status 2. Because this class is a subclass of `ValueError`, Python callers can catch
    `UserError` or `ValueError`.

    index  index of the faulty item, counted from 0, if the caller has passed a list of items; otherwise None
    """

    index: int | None = None


def is_out_of_memory(error: Exception) -> bool:
    """Return True for an out-of-memory error of Python or PyTorch.

    On a CPU, PyTorch raises a RuntimeError that is recognized by its message.
    """
    return type(error).__name__ in ("MemoryError", "OutOfMemoryError") or "can't allocate memory" in str(error)


class MissingExtra(UserError):
    """Error for a missing library that belongs to an optional extra of the package."""


def shown(names: Iterable[object], limit: int = 4) -> str:
    """Return the first names as a comma-separated list, followed by the number of the remaining names."""
    words = list(map(str, names))
    more = f" and {len(words) - limit:,} more" if len(words) > limit else ""
    return ", ".join(words[:limit]) + more


def similar(word: str, valid: Iterable[str]) -> str:
    """Return the valid name that is most similar to a mistyped name; an empty string if no name is similar."""
    return next(iter(get_close_matches(word, list(valid), n=1)), "")


def nearest(word: str, valid: Iterable[str]) -> str:
    """Return the end of an error message about an unknown name: the most similar valid name, or all valid names."""
    names = list(valid)
    close = similar(word, names)
    return f"did you mean {close}?" if close else f"valid are {', '.join(names)}"


@contextmanager
def extra(name: str, purpose: str) -> Iterator[None]:
    """Context manager that raises MissingExtra with the name of the extra if an import in the `with` block fails."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise MissingExtra(f"{purpose} needs {error.name}: pip install 'manyheads[{name}]'") from None
