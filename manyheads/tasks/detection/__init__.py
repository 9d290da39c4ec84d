"""Object detection, which finds objects in an image: their labels and boxes."""

from __future__ import annotations

from manyheads.tasks.info import OWN_DATA, PredictorRow, TaskInfo

INFO = TaskInfo(
    "detect",
    "detection",
    {OWN_DATA: {"detection": "detectors of objects in images"}},
    (PredictorRow("detection.predictor:Detector", ("detr",)),),
    served=True,
)
