"""The command `manyheads`, which is `python -m manyheads`."""

import sys


def main() -> int:
    """Run it; an interrupt is told in a line from the first moment on, while modules are imported."""
    try:
        from manyheads.cli import main as command

        return command()
    except KeyboardInterrupt:
        print("manyheads: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    raise SystemExit(main())
