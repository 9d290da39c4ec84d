"""List of all tasks, and the table of predictors that is derived from it. This module does not import torch."""

from __future__ import annotations

from manyheads.tasks.answering import INFO as ANSWERING
from manyheads.tasks.classification import INFO as CLASSIFICATION
from manyheads.tasks.detection import INFO as DETECTION
from manyheads.tasks.image_writing import INFO as IMAGE_WRITING
from manyheads.tasks.images import INFO as IMAGES
from manyheads.tasks.info import TaskInfo
from manyheads.tasks.language import INFO as LANGUAGE
from manyheads.tasks.masked_words import INFO as MASKED_WORDS
from manyheads.tasks.similarity import INFO as SIMILARITY
from manyheads.tasks.tagging import INFO as TAGGING
from manyheads.tasks.translation import INFO as TRANSLATION

# Commands and lists of recipes have this order.
TASKS: tuple[TaskInfo, ...] = (
    TRANSLATION,
    MASKED_WORDS,
    CLASSIFICATION,
    TAGGING,
    ANSWERING,
    LANGUAGE,
    IMAGES,
    DETECTION,
    IMAGE_WRITING,
    SIMILARITY,
)
# The first row that fits a model determines the class of its predictor.
PREDICTORS = tuple(row for task in TASKS for row in task.predictors)
