"""What heads do: how sharply and how far they look, which are alike, which matter, and what comes through all layers.

    with record(model) as maps:
        model.encode(tokens, lengths)
    statistics = HeadStatistics()
    statistics.add({name: calls[0] for name, calls in maps.items()}, lengths)
    print(statistics)

Maps are (B, H, T, T): of queries and keys that are the same tokens. `lengths` (B,) say how many tokens of a row are
real; None: all.
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
    """The means of one head over all query tokens that look at anything (Clark et al. 2019, section 3).

    entropy   of where a token looks, in nats; log(T) is looking everywhere alike, 0 at one token
    distance  to what is looked at, in tokens
    previous, itself, next  shares of the attention that go to those tokens
    special   shares that go to the special tokens, by their names
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
    """Sums over batches of maps; `heads()` gives the means."""

    def __init__(self) -> None:
        self._sums: dict[str, dict[str, Tensor]] = {}
        self._counts: dict[str, Tensor] = {}  # (H,) of each layer: tokens that look at anything

    def add(
        self, maps: Mapping[str, Tensor], lengths: Tensor | None = None, special: Mapping[str, Tensor] | None = None
    ) -> None:
        """maps by layer, each (B, H, T, T); special: bool tables (B, T), True where such a token stands. Every call
        gives the same layers; a UserError says so."""
        if not maps or (self._sums and list(maps) != list(self._sums)):
            raise UserError(f"maps of {', '.join(maps) or 'nothing'}: expected {', '.join(self._sums) or 'some'}")
        shape = next(iter(maps.values())).shape
        real = _real(shape[0], shape[-1], lengths)  # (B, T)
        at = torch.arange(shape[-1])
        away = at - at[:, None]  # (T, T): of the key from the query
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
        """Layer by layer. Raises UserError before any token was added."""
        if not any(count.any() for count in self._counts.values()):
            raise UserError("no token was added: give maps of texts or images first")
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
    """(..., Tq, Tk) -> (..., Tq), in nats. A row of zeros has none."""
    return -(map * map.clamp(min=torch.finfo(map.dtype).tiny).log()).sum(-1)


def divergences(maps: Mapping[str, Tensor], lengths: Tensor | None = None) -> Tensor:
    """How unlike the heads are: (N, N), N heads of all layers in their order, the mean over query tokens of the
    Jensen-Shannon divergence between where both look; from 0 to log 2 (Clark et al. 2019, section 6)."""
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
    """Points (N, 2) whose distances are as near as may be to those given (N, N): classical multidimensional scaling."""
    if len(divergences) < 2:
        raise UserError(f"{len(divergences)} head: expected two or more, to lie apart from each other")
    squared = divergences.double().square()
    centred = squared - squared.mean(0) - squared.mean(1, keepdim=True) + squared.mean()
    values, vectors = torch.linalg.eigh(-centred / 2)
    return (vectors[:, -2:] * values[-2:].clamp(min=0).sqrt()).flip(-1)


def clusters(divergences: Tensor, count: int) -> Tensor:
    """(N,): the number of the cluster of each head, of `count` that average linkage finds in (N, N)."""
    with extra("analysis", "clustering heads"):
        from sklearn.cluster import AgglomerativeClustering
    heads = len(divergences)
    if heads < 2 or not 1 <= count <= heads:
        raise UserError(f"{count} clusters of {heads} heads: expected 1 to {heads}, of two heads or more")
    clustering = AgglomerativeClustering(count, metric="precomputed", linkage="average").fit(divergences.numpy())
    return torch.from_numpy(clustering.labels_)


def rollout(maps: Sequence[Tensor], residual: float = 0.5) -> Tensor:
    """How much of each token of the input is in each token of the output (Abnar & Zuidema 2020, section 3): (B, T, T).

    maps      of all layers, each (B, H, T, T), the first first; the heads are averaged
    residual  the share of the residual path; what is left is the attention's
    """
    if not maps:
        raise UserError("no map to roll out: expected those of every layer")
    if bad := [tuple(map.shape) for map in maps if map.shape[-2:] != (map.shape[-1], maps[0].shape[-1])]:
        raise UserError(f"a map of shape {bad[0]}: expected the same tokens as queries and as keys in every layer")
    if not 0 <= residual <= 1:
        raise UserError(f"residual is {residual}: expected a share from 0 to 1")
    same = torch.eye(maps[0].shape[-1], dtype=maps[0].dtype, device=maps[0].device)
    mixed = same
    for map in maps:
        mixed = ((1 - residual) * map.mean(1) + residual * same) @ mixed
    return mixed


def attention_distances(model: ViT, images: Tensor) -> dict[str, Tensor]:
    """How far the heads of each layer look, (H,) in pixels: the mean distance between patches, weighted by the
    attention between them (Dosovitskiy 2020, figure 7).

    images  (B, C, Y, X), normalised as for training. What goes to the class token is left out.
    """
    if not isinstance(model, ViT) or not len(images):
        raise UserError(f"{len(images)} images and a {type(model).__name__}: expected some, and a ViT or DeiT")
    c = model.config
    rows, columns = c.grid
    at = torch.cartesian_prod(torch.arange(rows), torch.arange(columns)).to(images) * c.patch  # (P, 2)
    apart = torch.cdist(at, at)  # (P, P)
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
    """By how much the loss grows when a head is silenced, (H,) of each layer (Michel, Levy & Neubig 2019, section 3).

    loss    computes it with the model as it is, without dropout; called once for each head, and once for none
    layers  as of `record`: names, patterns, numbers; None: all
    """
    with record(model, layers, heads=[0], queries=[0]) as maps:  # which exist, and which the loss depends on: no more
        whole = loss()
    if not math.isfinite(whole):
        raise UserError(f"the loss is {whole} with all heads: expected a finite one")
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
    """(B, T): which tokens are no padding."""
    if lengths is None:
        return torch.ones(batch, tokens, dtype=torch.bool)
    if len(lengths) != batch or int(lengths.max()) > tokens:
        raise UserError(
            f"lengths of {len(lengths)} texts up to {int(lengths.max())}: the maps have {batch} of {tokens}"
        )
    return torch.arange(tokens) < lengths.cpu()[:, None]
