"""Image classification."""

from __future__ import annotations

from manyheads.models.presets import IMAGES
from manyheads.tasks.info import OWN_DATA, PUBLISHED, PredictorRow, TaskInfo

INFO = TaskInfo(
    "classify",
    "images",
    {
        OWN_DATA: {"image-classification": "Vision Transformers for images"},
        PUBLISHED: {
            "mnist": "a Vision Transformer for handwritten digits",
            "cifar10": "classifiers of small photos: ResNets, Vision Transformers, and mixtures",
            "deit": "DeiT for ImageNet, and its ablation table on CIFAR-10",
        },
    },
    (
        PredictorRow("images.predictor:ImageClassifier", IMAGES),
        PredictorRow("images.predictor:ImageEncoder", IMAGES, ("none",)),
    ),
)
