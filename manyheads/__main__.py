"""Entry point of the command `manyheads`, also run by `python -m manyheads`."""

import sys


def main() -> int:
    """Run the command `manyheads`.

    If the user presses Ctrl-C, print one line, even while modules are being imported.
    """
    try:
        from manyheads.cli import main as command

        return command()
    except KeyboardInterrupt:
        print("manyheads: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    raise SystemExit(main())
