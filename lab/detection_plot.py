"""Draw average precision over minutes of training a detector: `python -m lab.detection_plot`.

docs/images/detection-curve.png shows the validation scenes of the recorded run of the recipe `detection`. The entry
`validation_curve` of the record has the minutes of training, without validation.
"""

from __future__ import annotations

from pathlib import Path

from lab.records import records
from manyheads.analysis.drawing import HUES

FIGURE = Path("docs/images/detection-curve.png")


def draw(out: Path) -> Path:
    """Draw the curves, and return the path of the picture."""
    from matplotlib import pyplot

    (record,) = (record for record in records() if record["recipe"] == "detection" and "validation_curve" in record)
    curve = record["validation_curve"]
    figure, axis = pyplot.subplots(figsize=(6, 3.2), layout="constrained")
    for metric, name, color in (("ap50", "AP50", HUES[0]), ("ap", "AP (IoU 0.5 to 0.95)", HUES[1])):
        axis.plot([entry["minutes"] for entry in curve], [entry[metric] for entry in curve], color=color, label=name)
    axis.set(xlabel="minutes of training, one thread", ylabel="on 200 validation scenes", ylim=(0, 1))
    axis.grid(alpha=0.3)
    axis.legend(loc="lower right")
    figure.savefig(out, dpi=120)
    return out


if __name__ == "__main__":
    print(draw(FIGURE))
