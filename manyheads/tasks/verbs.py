"""Names of all commands in the order of `--help`. Each predictor supports some of the commands for models."""

from __future__ import annotations

# These commands read one input per line and write one output line each.
PREDICTIONS = ("translate", "classify", "tag", "answer", "fill", "generate")
SERVED = (*PREDICTIONS, "embed")  # names of the commands (such as translate) that clients of the HTTP service can use
COMMANDS = (
    "recipes",
    "train",
    "evaluate",
    "compare",
    "curve",
    *PREDICTIONS,
    "attend",
    "lens",
    "draw",
    "probe",
    "summary",
    "plan",
    "export",
    "convert",
    "serve",
)
