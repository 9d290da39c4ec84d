"""Entry point of the command `manyheads`, also run by `python -m manyheads`."""

import atexit
import gc
import sys

# number of new objects after which Python looks for unused cycles of objects
OBJECTS = 100_000


def main() -> int:
    """Run the command `manyheads`.

    If the user presses Ctrl-C, print one line, even while modules are being imported.
    """
    # Python's default, 700 new objects, takes a sixth of a second while torch is imported. At the end, the search for
    # cycles among all objects would take longer than that.
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
