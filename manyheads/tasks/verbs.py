"""Names of all commands, in the groups and the order of `--help`. Each predictor supports some of the commands."""

from __future__ import annotations

from manyheads.tasks.table import TASKS

# These commands read one input per line and write one output line each.
PREDICTIONS = tuple(dict.fromkeys(task.verb for task in TASKS))
SERVED = (*PREDICTIONS, "embed")  # names of the commands (such as translate) that clients of the HTTP service can use
GROUPS = {
    "train": ("recipes", "plan", "train", "evaluate", "compare"),
    "use": SERVED,
    "inspect": ("summary", "attend", "lens", "probe"),
    "deploy": ("export", "convert", "average", "serve"),
}
COMMANDS = tuple(command for group in GROUPS.values() for command in group)
