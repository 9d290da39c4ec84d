"""Image models that predict the color of the next pixel, and so complete images."""

from __future__ import annotations

from manyheads.tasks.info import OWN_DATA, PredictorRow, TaskInfo

INFO = TaskInfo(
    "generate",
    "image_writing",
    {OWN_DATA: {"image-writing": "iGPTs that complete images, pixel by pixel"}},
    (PredictorRow("image_writing.predictor:ImageWriter", ("igpt",)),),
)
