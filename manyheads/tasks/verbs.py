"""The verbs of the command line, in the order of `--help`, and the ones that a predictor may declare."""

from __future__ import annotations

PREDICTIONS = ("translate", "classify", "tag", "answer", "fill", "generate")  # a line in, a line out
SERVED = (*PREDICTIONS, "embed")  # by the service
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
