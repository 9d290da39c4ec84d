"""Results on the page of the service, by its scripts in node."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from manyheads import service

ASSETS = Path(service.__path__[0]) / "assets"
# `el` and `share` are of other scripts of the page; an element is a list of its class name and its children here.
SCRIPT = """
globalThis.el = (tag, { className = tag }, ...children) => [className, ...children];
globalThis.share = (value) => `${Math.round(100 * value)}%`;
const { VERBS } = await import("VERBS");
const [card, results] = JSON.parse(process.argv[1]);
const desk = { ask: (path, body) => ({ results: [results.slice(0, body.top ?? 1)] }), look: () => {},
  show: (...shown) => console.log(JSON.stringify(shown)) };
await VERBS.classify.run(card, { text: "a" }, desk);
"""


def shown(threshold: float | dict[str, float] | None, chances: dict[str, float]) -> tuple[str, list[Any]]:
    """Return the headline, and name and amount of each row of the ranking."""
    if (node := shutil.which("node")) is None:
        pytest.skip("no node on the path: install Node.js to test the scripts of the page")
    card = {"id": "m", "labels": [*chances], "threshold": threshold}
    results = [{"label": name, "probability": p} for name, p in chances.items()]
    script = SCRIPT.replace('"VERBS"', json.dumps((ASSETS / "verbs.js").as_uri()))
    command = [node, "--input-type=module", "-e", script, json.dumps([card, results])]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    (_, headline), (_, _, (_, *rows)) = json.loads(done.stdout)
    return headline, [(name[1], amount[1]) for _, name, *_, amount in rows]


def test_all_labels_over_the_threshold_are_the_headline() -> None:
    chances = {"ship": 0.9, "automobile": 0.6, "horse": 0.5, "frog": 0.2}
    rows = [("ship", "90%"), ("automobile", "60%"), ("horse", "50%"), ("threshold", "50%"), ("frog", "20%")]
    assert shown(0.5, chances) == ("ship, automobile, horse", rows)
    assert shown(0.95, chances)[0] == "No label is over the threshold."
    assert shown(None, chances) == ("ship", [row for row in rows if row[0] != "threshold"])
    headline, rows = shown({"ship": 0.95, "automobile": 0.7, "horse": 0.4, "frog": 0.2}, chances)
    assert headline == "horse, frog"
    assert [name for name, _ in rows] == [
        "horse (from 40%)", "frog (from 20%)", "below their thresholds", "ship (from 95%)", "automobile (from 70%)"
    ]  # fmt: skip
