"""Names of the commands in the order of `--help`, and the commands that a predictor may support."""

from __future__ import annotations

# These commands read one input per line and write one output line each.
PREDICTIONS = ("translate", "classify", "tag", "answer", "fill", "generate")
SERVED = (*PREDICTIONS, "embed")  # commands that the HTTP service offers
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
