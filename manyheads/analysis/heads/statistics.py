"""Statistics of attention maps: entropy, distance, similarity of heads, importance, and attention rollout.

    with record(model) as maps:
        model.encode(tokens, lengths)
    statistics = HeadStatistics()
    statistics.add({name: calls[0] for name, calls in maps.items()}, lengths)
    print(statistics)

Maps are (B, H, T, T), with the same tokens as queries and keys. `lengths` (B,) holds the number of tokens of each row
without padding; default: all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from manyheads.core.runtime import eval_mode
from manyheads.core.tap import edit, record, tapped
from manyheads.errors import UserError, extra
from manyheads.models.vit import ViT


class Head(NamedTuple):
    """Means of one head over all query tokens that attend to anything (Clark et al. 2019, section 3).

    entropy   entropy of the attention weights, in nats: log(T) if uniform, 0 for a single token
    distance  mean distance of the attended tokens, in tokens
    previous, itself, next  fractions of the attention on those tokens
    special   fractions of the attention on special tokens, by name
    """

    layer: str
    head: int
    entropy: float
    distance: float
    previous: float
    itself: float
    next: float
    special: dict[str, float]


class HeadStatistics:
    """Running sums over batches of maps. `heads()` returns the means."""

    def __init__(self) -> None:
        self._sums: dict[str, dict[str, Tensor]] = {}
        self._counts: dict[str, Tensor] = {}  # number of attending tokens for each layer, (H,)

    def add(
        self, maps: Mapping[str, Tensor], lengths: Tensor | None = None, special: Mapping[str, Tensor] | None = None
    ) -> None:
        """Add a batch of maps by layer, each (B, H, T, T). Raise UserError if the layers differ from earlier calls.

        special  boolean tables (B, T) by name, True at the special tokens
        """
        if not maps or (self._sums and list(maps) != list(self._sums)):
            raise UserError(
                f"maps of {', '.join(maps) or 'no layer'}: expected {', '.join(self._sums) or 'at least one layer'}"
            )
        shape = next(iter(maps.values())).shape
        real = _real(shape[0], shape[-1], lengths)  # (B, T)
        at = torch.arange(shape[-1])
        away = at - at[:, None]  # (T, T) offset of the key from the query
        for layer, map in maps.items():
            kept = map.detach().cpu().float() * real[:, None, :, None]  # (B, H, T, T)
            measures = {
                "entropy": entropy(kept),
                "distance": (kept * away.abs()).sum(-1),
                **{name: (kept * (away == k)).sum(-1) for name, k in (("previous", -1), ("itself", 0), ("next", 1))},
                **{name: (kept * mark.cpu()[:, None, None]).sum(-1) for name, mark in (special or {}).items()},
            }  # each (B, H, T)
            sums, looks = self._sums.setdefault(layer, {}), (kept.sum(-1) > 0).sum((0, 2))
            self._counts[layer] = self._counts.get(layer, torch.zeros(())) + looks
            for name, values in measures.items():
                sums[name] = sums.get(name, torch.zeros(())) + values.double().sum((0, 2))  # (H,)

    def heads(self) -> list[Head]:
        """Return the means of all heads, layer by layer. Raise UserError if nothing was added."""
        if not any(count.any() for count in self._counts.values()):
            raise UserError("no maps were added: add maps of texts or images first")
        own = Head._fields[2:-1]
        heads = []
        for layer, sums in self._sums.items():
            means = {name: (total / self._counts[layer].clamp(min=1)).tolist() for name, total in sums.items()}
            for head in range(len(means["entropy"])):
                special = {name: values[head] for name, values in means.items() if name not in own}
                shares = {name: means[name][head] for name in own}
                heads.append(Head(layer, head, **shares, special=special))
        return heads

    def __str__(self) -> str:
        heads = self.heads()
        names = [*Head._fields[2:-1], *heads[0].special]
        width = max(len(head.layer) for head in heads)
        lines = [f"{'layer':{width}} head " + " ".join(f"{name:>9}" for name in names)]
        for head in heads:
            values = [*head[2:-1], *head.special.values()]
            lines.append(f"{head.layer:{width}} {head.head:4} " + " ".join(f"{value:9.3f}" for value in values))
        return "\n".join(lines)


def entropy(map: Tensor) -> Tensor:
    """Return the entropy of attention maps (..., Tq, Tk) in nats, (..., Tq). A row of zeros has entropy 0."""
    return -(map * map.clamp(min=torch.finfo(map.dtype).tiny).log()).sum(-1)


def divergences(maps: Mapping[str, Tensor], lengths: Tensor | None = None) -> Tensor:
    """Return the pairwise divergence of heads, (N, N), for the N heads of all layers in order.

    It is the Jensen-Shannon divergence of their attention, averaged over query tokens, from 0 to log 2 (Clark et al.
    2019, section 6).
    """
    stacked = torch.cat([map.detach().cpu().float() for map in maps.values()], 1)  # (B, N, T, T)
    real = _real(stacked.shape[0], stacked.shape[-1], lengths)
    rows = stacked.transpose(1, 2)[real].transpose(0, 1)  # (N, queries, T)
    own = entropy(rows)  # (N, queries)
    unlike = torch.zeros(len(rows), len(rows))
    for i in range(len(rows)):
        mixed = entropy((rows[i] + rows[i:]) / 2)
        unlike[i, i:] = (mixed - (own[i] + own[i:]) / 2).mean(-1)
    return (unlike + unlike.triu(1).T).clamp(min=0.0)


def place(divergences: Tensor) -> Tensor:
    """Return points (N, 2) whose distances approximate those given (N, N), by classical multidimensional scaling."""
    if len(divergences) < 2:
        raise UserError(f"found {len(divergences)} head: expected two or more")
    squared = divergences.double().square()
    centred = squared - squared.mean(0) - squared.mean(1, keepdim=True) + squared.mean()
    values, vectors = torch.linalg.eigh(-centred / 2)
    return (vectors[:, -2:] * values[-2:].clamp(min=0).sqrt()).flip(-1)


def clusters(divergences: Tensor, count: int) -> Tensor:
    """Return the cluster index of each head, (N,), for `count` clusters by average linkage of the divergences (N,
    N).
    """
    with extra("analysis", "clustering heads"):
        from sklearn.cluster import AgglomerativeClustering
    heads = len(divergences)
    if heads < 2 or not 1 <= count <= heads:
        raise UserError(f"{count} clusters of {heads} heads: expected two or more heads, and 1 to {heads} clusters")
    clustering = AgglomerativeClustering(count, metric="precomputed", linkage="average").fit(divergences.numpy())
    return torch.from_numpy(clustering.labels_)


def rollout(maps: Sequence[Tensor], residual: float = 0.5) -> Tensor:
    """Return attention rollout (B, T, T): the fraction of each input token in each output token.

    maps      maps of all layers in order, each (B, H, T, T); heads are averaged
    residual  fraction of the residual connection; the rest is the attention's

    Source: Abnar & Zuidema 2020, section 3.
    """
    if not maps:
        raise UserError("no maps: expected those of every layer")
    if bad := [tuple(map.shape) for map in maps if map.shape[-2:] != (map.shape[-1], maps[0].shape[-1])]:
        raise UserError(f"found a map of shape {bad[0]}: expected the same tokens as queries and keys in every layer")
    if not 0 <= residual <= 1:
        raise UserError(f"residual is {residual}: expected a fraction from 0 to 1")
    same = torch.eye(maps[0].shape[-1], dtype=maps[0].dtype, device=maps[0].device)
    mixed = same
    for map in maps:
        mixed = ((1 - residual) * map.mean(1) + residual * same) @ mixed
    return mixed


def attention_distances(model: ViT, images: Tensor) -> dict[str, Tensor]:
    """Return the mean attention distance of each layer's heads, (H,), in pixels (Dosovitskiy 2020, figure 7).

    It is the mean distance between patches, weighted by the attention between them. Attention to the class token is
    left out.

    images  (B, C, Y, X), normalized as in training
    """
    if not isinstance(model, ViT) or not len(images):
        raise UserError(f"found {len(images)} images and a {type(model).__name__}: expected images, and a ViT or DeiT")
    c = model.config
    rows, columns = c.grid
    # (P, 2) position of each patch
    at = torch.cartesian_prod(torch.arange(rows), torch.arange(columns)).to(images) * c.patch
    apart = torch.cdist(at, at)  # (P, P) distances
    first = c.tokens - rows * columns
    with eval_mode(model), record(model) as maps:
        model(images)
    distances = {}
    for layer, calls in maps.items():
        between = calls[0][..., first:, first:]  # (B, H, P, P)
        weights = between / between.sum(-1, keepdim=True).clamp(min=torch.finfo(between.dtype).tiny)
        distances[layer] = (weights * apart).sum(-1).mean((0, 2))
    return distances


def importance(model: nn.Module, loss: Callable[[], float], layers: Any = None) -> dict[str, Tensor]:
    """Return the increase of the loss when a head is removed, (H,) for each layer (Michel, Levy & Neubig 2019, section
    3).

    loss    computes the loss with the current model, without dropout; called once per head, and once for the whole
            model
    layers  as in `record`: names, patterns, indices; default: all
    """
    # minimal recording, to find the layers that the loss uses
    with record(model, layers, heads=[0], queries=[0]) as maps:
        whole = loss()
    if not math.isfinite(whole):
        raise UserError(f"the loss is {whole} with all heads: expected a finite number")
    modules, growth = tapped(model), {}
    for layer in (layer for layer, calls in maps.items() if calls):
        grown = []
        for head in range(modules[layer].heads):  # type: ignore[arg-type]
            with edit(model) as change:
                change.zero(layer, heads=[head])
                grown.append(loss() - whole)
        growth[layer] = torch.tensor(grown, dtype=torch.float64)
    return growth


def _real(batch: int, tokens: int, lengths: Tensor | None) -> Tensor:
    """Return the mask (B, T) of tokens that are not padding."""
    if lengths is None:
        return torch.ones(batch, tokens, dtype=torch.bool)
    if len(lengths) != batch or int(lengths.max()) > tokens:
        raise UserError(
            f"found {len(lengths)} lengths up to {int(lengths.max())}: expected {batch} lengths up to {tokens}, as"
            " in the maps"
        )
    return torch.arange(tokens) < lengths.cpu()[:, None]
