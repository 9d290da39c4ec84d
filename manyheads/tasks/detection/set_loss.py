"""Loss of DETR: a prediction for each object query is compared with a set of objects (Carion 2020, section 3.1).

The Hungarian algorithm assigns each object of an image to another query, with the smallest total cost. The query of an
object learns its label and its box, and all other queries learn the label "no object".
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from manyheads.errors import extra
from manyheads.models.detr import Detections

LABEL_COST, L1, GIOU = 1.0, 5.0, 2.0  # weights in costs and losses (section A.4)
CELLS = 2.0  # weight of the loss of the cells' labels
NO_OBJECT = 0.1  # weight of the label "no object" in the cross-entropy (section A.2)


class Objects(NamedTuple):
    """Objects of a batch of B images, padded to the largest number M of objects in an image.

    boxes   (B, M, 4) center x, center y, width and height, as fractions of the image's sides
    labels  (B, M) class indices
    valid   (B, M) False for padding
    """

    boxes: Tensor
    labels: Tensor
    valid: Tensor


class SetLoss(NamedTuple):
    """Parts of the loss, each a sum over layers, and a mean over groups of queries.

    labels  cross-entropy, a weighted mean over queries
    l1      sum of the absolute differences of the boxes' four numbers, over objects
    giou    sum of 1 - generalized IoU over objects
    """

    labels: Tensor
    l1: Tensor
    giou: Tensor


def corners(boxes: Tensor) -> Tensor:
    """Convert boxes (..., 4) from center, width and height to left, top, right and bottom."""
    center, size = boxes[..., :2], boxes[..., 2:]
    return torch.cat([center - size / 2, center + size / 2], -1)


def generalized_iou(a: Tensor, b: Tensor) -> Tensor:
    """Return the generalized IoU of boxes (..., 4) by their corners; the shapes broadcast (Rezatofighi 2019).

    It is the intersection over the union, minus the fraction of the smallest box around both that neither covers.
    """

    def area(corner: Tensor, opposite: Tensor) -> Tensor:
        return (opposite - corner).clamp(min=0).prod(-1)

    shared = area(torch.maximum(a[..., :2], b[..., :2]), torch.minimum(a[..., 2:], b[..., 2:]))
    union = area(a[..., :2], a[..., 2:]) + area(b[..., :2], b[..., 2:]) - shared
    around = area(torch.minimum(a[..., :2], b[..., :2]), torch.maximum(a[..., 2:], b[..., 2:]))
    tiny = torch.finfo(union.dtype).tiny
    return shared / union.clamp(min=tiny) - (around - union) / around.clamp(min=tiny)


@torch.no_grad()
def match(found: Detections, objects: Objects) -> Tensor:
    """Return the index of the query of each object, (..., B, M). For padding, it is 0.

    found  predictions (..., B, N, L + 1) and (..., B, N, 4)
    """
    with extra("vision", "training a detector"):
        from scipy.optimize import linear_sum_assignment
    queries, most = found.logits.shape[-2], objects.labels.shape[1]
    # cost of each object for each query, (..., B, N, M)
    at = objects.labels[:, None].expand(*found.logits.shape[:-1], most)
    cost = -LABEL_COST * found.logits.float().softmax(-1).gather(-1, at)
    cost += L1 * torch.cdist(found.boxes.float(), objects.boxes.expand(*found.boxes.shape[:-2], most, 4), p=1)
    cost -= GIOU * generalized_iou(corners(found.boxes.float())[..., None, :], corners(objects.boxes)[:, None])
    counts, costs = objects.valid.sum(1).tolist(), cost.nan_to_num(1e9).cpu().numpy()
    assigned = np.zeros((*costs.shape[:-2], most), dtype=np.int64)
    for place in np.ndindex(costs.shape[:-2]):
        count = min(counts[place[-1]], queries)
        rows, columns = linear_sum_assignment(costs[place][:, :count])
        assigned[(*place, columns)] = rows
    return torch.from_numpy(assigned).to(found.boxes.device)


def set_loss(found: Detections, objects: Objects) -> SetLoss:
    """Return the parts of the loss for predictions of several layers and groups of queries.

    found  predictions (layers, groups, B, N, L + 1) and (layers, groups, B, N, 4)
    """
    groups, nothing = found.logits.shape[1], found.logits.shape[-1] - 1
    chosen = match(found, objects)  # (layers, groups, B, M)
    boxes = found.boxes.float().gather(-2, chosen[..., None].expand(*chosen.shape, 4))
    valid = objects.valid.expand(chosen.shape)
    l1 = (boxes - objects.boxes).abs().sum(-1)
    giou = 1 - generalized_iou(corners(boxes), corners(objects.boxes))
    labels = torch.full(found.logits.shape[:-1], nothing, device=chosen.device)
    where = valid.nonzero(as_tuple=True)
    labels[(*where[:-1], chosen[where])] = objects.labels.expand(chosen.shape)[where]
    weights = label_weights(nothing + 1, chosen.device)
    entropies = F.cross_entropy(
        found.logits.float().flatten(0, -2), labels.flatten(), weights, reduction="none"
    ).view_as(labels)
    totals = weights[labels].sum((-2, -1))  # (layers, groups)
    return SetLoss(
        (entropies.sum((-2, -1)) / totals).sum() / groups,
        l1[valid].sum() / groups,
        giou[valid].sum() / groups,
    )


def label_weights(count: int, device: torch.device) -> Tensor:
    """Return the weights of the labels in a cross-entropy, (L + 1); the last label is "no object"."""
    weights = torch.ones(count, device=device)
    weights[-1] = NO_OBJECT
    return weights


def cell_loss(logits: Tensor, valid: Tensor, objects: Objects) -> Tensor:
    """Return the mean cross-entropy of the labels of an image's cells.

    An object labels the cells whose centers are in its box, or less than half a cell away from it. If a cell has
    several objects, the one with the nearest center labels it.

    logits  (B, Y * X, L + 1)
    valid   table of the cells whose pixels are not padding, (B, Y, X)
    """
    counts = torch.stack([valid[:, 0].sum(1), valid[:, :, 0].sum(1)], -1)[:, None]  # columns and rows, (B, 1, 2)
    rows, columns = (torch.arange(size, device=valid.device) + 0.5 for size in valid.shape[1:])
    numbers = torch.stack(torch.meshgrid(columns, rows, indexing="xy"), -1).flatten(0, 1)  # x and y, (Y * X, 2)
    centers, half = (numbers / counts)[:, :, None], 0.5 / counts[:, :, None]  # (B, Y * X, 1, 2), (B, 1, 1, 2)
    edges = corners(objects.boxes)[:, None]  # (B, 1, M, 4)
    inside = ((centers >= edges[..., :2] - half) & (centers <= edges[..., 2:] + half)).all(-1) & objects.valid[:, None]
    distance = (centers - objects.boxes[:, None, :, :2]).abs().sum(-1).masked_fill(~inside, torch.inf)
    nothing = logits.shape[-1] - 1
    labels = objects.labels.gather(1, distance.argmin(-1)).masked_fill(~inside.any(-1), nothing)
    weights = label_weights(nothing + 1, logits.device)
    return F.cross_entropy(logits.float().flatten(0, 1), labels.flatten(), weights)
