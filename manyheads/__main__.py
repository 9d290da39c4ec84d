"""Entry point of the command `manyheads`, also run by `python -m manyheads`."""

import atexit
import gc
import sys

# number of new objects after which Python's garbage collector searches for unused cycles of objects
OBJECTS = 100_000


def main() -> int:
    """Run the command `manyheads`.

    If the user presses Ctrl-C, print one line, even while modules are being imported.
    """
    # With Python's default of 700 new objects, garbage collection takes a sixth of a second of the import of torch.
    # `gc.freeze` avoids the final collection at exit, which would take even longer.
    gc.set_threshold(OBJECTS)
    atexit.register(gc.freeze)
    try:
        from manyheads.cli import main as command

        return command()
    except KeyboardInterrupt:
        print("manyheads: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    raise SystemExit(main())
