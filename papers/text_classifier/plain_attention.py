"""The text classifier with plain dot products: its queries, keys and values are the vectors of the words themselves."""

from __future__ import annotations

import torch

from manyheads.core.attention import Attention
from manyheads.core.runtime import ComputeConfig
from manyheads.data.readers.labeled import Labeled
from manyheads.data.readers.splits import SplitData
from manyheads.runs.task import Job
from manyheads.tasks.classification.task import Classification


class PlainAttention(Classification):
    """Task of a text classifier whose matrices of queries, keys and values are fixed identity matrices.

    The heads of a layer then compute the same weights, from the dot products of the words' vectors. The width of a head
    must be the width of the model. Everything else is trained, also the output matrix of each attention layer.
    """

    def build(self, splits: SplitData[Labeled], compute: ComputeConfig) -> Job:
        job = super().build(splits, compute)
        for layer in job.model.modules():
            if isinstance(layer, Attention):
                for projection in (layer.query, layer.key, layer.value):
                    height, width = projection.weight.shape
                    identities = torch.eye(width).repeat(height // width, 1)
                    projection.weight.requires_grad_(False).copy_(identities)
                    projection.bias.requires_grad_(False).zero_()
        return job
