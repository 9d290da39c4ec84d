"""`python -m manyheads` is the command `manyheads`."""

from manyheads.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
