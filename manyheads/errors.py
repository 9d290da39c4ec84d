"""The error that users can fix. Everything else is a bug and keeps its traceback."""


class UserError(ValueError):
    """An input, a setting or a file that the user can correct.

    The message is one line: what is wrong, where (file and line), and what to do. The command line prints it and exits
    with status 2. It is a `ValueError`, so that Python callers may catch either.
    """
