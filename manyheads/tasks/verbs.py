"""Names of all commands, in the groups and the order of `--help`. Each predictor supports some of the commands."""

from __future__ import annotations

from manyheads.tasks.table import TASKS

PREDICTIONS = tuple(dict.fromkeys(task.verb for task in TASKS))
# Commands that the HTTP service offers, too. On the command line, they read one input per line and write one output
# line for each input.
SERVED = (*dict.fromkeys(task.verb for task in TASKS if task.served), "rerank")
GROUPS = {
    "train": ("recipes", "plan", "train", "evaluate", "compare", "runs"),
    "use": (*PREDICTIONS, "rerank"),
    "inspect": ("summary", "attend", "lens", "explain", "patch", "probe", "tutorials"),
    "deploy": ("export", "convert", "average", "serve"),
}
COMMANDS = tuple(command for group in GROUPS.values() for command in group)
