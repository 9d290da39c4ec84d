"""Translation of texts with an encoder-decoder."""

from __future__ import annotations

from manyheads.models.presets import TRANSLATORS
from manyheads.tasks.info import OWN_DATA, PredictorRow, TaskInfo

# Maximum beam width. It is defined here, so that the command line can check the user's value without loading the
# predictor.
MAX_BEAMS = 1024

INFO = TaskInfo(
    "translate",
    "translation",
    {OWN_DATA: {"translation": "translators of parallel texts, from dates and amounts to WMT14"}},
    (PredictorRow("translation.predictor:Translator", TRANSLATORS),),
)
