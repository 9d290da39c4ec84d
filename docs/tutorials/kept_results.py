"""Results of finished trainings that took too long for a notebook.

The file kept_results.json has them by title. They come from the records of runs in the source code of Manyheads.
"""

import json
from pathlib import Path

KEPT = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))


def table(title: str) -> str:
    """Return a table of scores as text. "±" is the standard deviation between runs with different seeds."""
    return "\n".join(KEPT["tables"][title])


def numbers(title: str) -> list[dict]:
    """Return a list of dictionaries with plain numbers, such as one dictionary for each curve of a picture."""
    return KEPT["numbers"][title]
