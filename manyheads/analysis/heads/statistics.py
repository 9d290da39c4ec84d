"""Statistics of attention maps: entropy, distance, similarity of heads, importance of heads, and attention rollout.

    with record(model) as maps:
        model.encode(tokens, lengths)
    statistics = HeadStatistics()
    statistics.add({name: calls[0] for name, calls in maps.items()}, lengths)
    print(statistics)

Attention maps have the shape (B, H, T, T), with the same T tokens as queries and keys. `lengths` (B,) holds the number
of tokens of each row without padding; default: all T tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from manyheads.core.editing import edit
from manyheads.core.recording import record, tapped
from manyheads.core.runtime import eval_mode
from manyheads.displays import html_table
from manyheads.errors import UserError, extra
from manyheads.models.vit import ViT


class Head(NamedTuple):
    """Statistics of one attention head, averaged over all query tokens with attention to at least one token.

    The statistics are those of Clark et al. 2019, section 3.

    entropy   entropy of the attention weights, in nats: log(T) if uniform, 0 for a single token
    distance  mean distance from the query token to the attended tokens, in tokens
    previous, itself, next  fraction of the attention on the previous token, on the query itself, and on the next token
    special   fraction of the attention on each special token, by name
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
    """Running sums of head statistics over batches of attention maps. `heads()` returns the means."""

    def __init__(self) -> None:
        self._sums: dict[str, dict[str, Tensor]] = {}
        # number of query tokens with attention to at least one token, for each layer and head: one tensor (H,) per
        # layer
        self._counts: dict[str, Tensor] = {}

    def add(
        self, maps: Mapping[str, Tensor], lengths: Tensor | None = None, special: Mapping[str, Tensor] | None = None
    ) -> None:
        """Add a batch of attention maps (B, H, T, T) by layer name.

        Raises UserError if the layers differ from earlier calls.

        special  boolean tables (B, T) by token name, True at the positions of this special token
        """
        if not maps or (self._sums and list(maps) != list(self._sums)):
            raise UserError(
                f"maps of {', '.join(maps) or 'no layer'}: expected {', '.join(self._sums) or 'at least one layer'}"
            )
        shape = next(iter(maps.values())).shape
        real = _token_mask(shape[0], shape[-1], lengths)  # (B, T)
        at = torch.arange(shape[-1])
        away = at - at[:, None]  # offset of the key position from the query position, (T, T)
        for layer, map in maps.items():
            # attention maps where padding queries have weights of zero, (B, H, T, T)
            kept = map.detach().cpu().float() * real[:, None, :, None]
            measures = {
                "entropy": entropy(kept),
                "distance": (kept * away.abs()).sum(-1),
                **{name: (kept * (away == k)).sum(-1) for name, k in (("previous", -1), ("itself", 0), ("next", 1))},
                **{name: (kept * mark.cpu()[:, None, None]).sum(-1) for name, mark in (special or {}).items()},
            }  # entropy and other statistics of each query token, each (B, H, T)
            sums, looks = self._sums.setdefault(layer, {}), (kept.sum(-1) > 0).sum((0, 2))
            self._counts[layer] = self._counts.get(layer, torch.zeros(())) + looks
            for name, values in measures.items():
                sums[name] = sums.get(name, torch.zeros(())) + values.double().sum((0, 2))  # (H,)

    def heads(self) -> list[Head]:
        """Return the mean statistics of all heads, layer by layer. Raise UserError if nothing was added."""
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

    def __repr__(self) -> str:
        return f"{type(self).__name__} of {sum(map(len, self._counts.values()))} heads"

    def _repr_html_(self) -> str:
        heads = self.heads()
        rows = [[*head[:-1], *head.special.values()] for head in heads]
        return html_table([*Head._fields[:-1], *heads[0].special], rows)

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
    """Return the entropy of attention maps (..., Tq, Tk) in nats, for each query (..., Tq).

    The entropy is 0 for a query whose weights are all zero.
    """
    return -(map * map.clamp(min=torch.finfo(map.dtype).tiny).log()).sum(-1)


def divergences(maps: Mapping[str, Tensor], lengths: Tensor | None = None) -> Tensor:
    """Return the pairwise divergence (N, N) of the attention maps of N heads, in the order of the layers.

    The Jensen-Shannon divergence of two heads' attention, from 0 to log 2, is averaged over query tokens (Clark et al.
    2019, section 6).
    """
    # attention maps of all heads, (B, N, T, T)
    stacked = torch.cat([map.detach().cpu().float() for map in maps.values()], 1)
    real = _token_mask(stacked.shape[0], stacked.shape[-1], lengths)
    rows = stacked.transpose(1, 2)[real].transpose(0, 1)  # (N, queries, T)
    own = entropy(rows)  # (N, queries)
    unlike = torch.zeros(len(rows), len(rows))
    for i in range(len(rows)):
        mixed = entropy((rows[i] + rows[i:]) / 2)
        unlike[i, i:] = (mixed - (own[i] + own[i:]) / 2).mean(-1)
    return (unlike + unlike.triu(1).T).clamp(min=0.0)


def place(divergences: Tensor) -> Tensor:
    """Return N points in the plane (N, 2) whose distances approximate the given distances (N, N).

    The method is classical multidimensional scaling.
    """
    if len(divergences) < 2:
        raise UserError(f"found {len(divergences)} head: expected two or more")
    squared = divergences.double().square()
    centred = squared - squared.mean(0) - squared.mean(1, keepdim=True) + squared.mean()
    values, vectors = torch.linalg.eigh(-centred / 2)
    return (vectors[:, -2:] * values[-2:].clamp(min=0).sqrt()).flip(-1)


def clusters(divergences: Tensor, count: int) -> Tensor:
    """Group N attention heads into `count` clusters, and return the cluster index of each head, (N,).

    The method is average linkage on the pairwise divergences (N, N).
    """
    with extra("analysis", "clustering heads"):
        from sklearn.cluster import AgglomerativeClustering
    heads = len(divergences)
    if heads < 2 or not 1 <= count <= heads:
        raise UserError(f"{count} clusters of {heads} heads: expected two or more heads, and 1 to {heads} clusters")
    clustering = AgglomerativeClustering(count, metric="precomputed", linkage="average").fit(divergences.numpy())
    return torch.from_numpy(clustering.labels_)


def rollout(maps: Sequence[Tensor], residual: float = 0.5) -> Tensor:
    """Return attention rollout (B, T, T): the contribution of each input token to each output token of the model.

    maps      attention maps of all layers in order, each (B, H, T, T); the mean over the heads is used
    residual  fraction that the residual connection contributes to a layer's output; attention contributes the rest

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
    """Return the mean attention distance in pixels of each layer's heads, (H,) per layer (Dosovitskiy 2020, figure 7).

    It is the mean distance between image patches, weighted by the attention between them. Attention to the class token
    is excluded.

    images  normalized images as in training, (B, C, Y, X)
    """
    if not isinstance(model, ViT) or not len(images):
        raise UserError(f"found {len(images)} images and a {type(model).__name__}: expected images, and a ViT or DeiT")
    c = model.config
    rows, columns = c.grid
    # position of each image patch, (P, 2)
    at = torch.cartesian_prod(torch.arange(rows), torch.arange(columns)).to(images) * c.patch
    apart = torch.cdist(at, at)  # (P, P) distances
    first = c.tokens - rows * columns
    with eval_mode(model), record(model) as maps:
        model(images)
    distances = {}
    for layer, calls in maps.items():
        between = calls[0][..., first:, first:]  # attention between image patches, (B, H, P, P)
        weights = between / between.sum(-1, keepdim=True).clamp(min=torch.finfo(between.dtype).tiny)
        distances[layer] = (weights * apart).sum(-1).mean((0, 2))
    return distances


def importance(model: nn.Module, loss: Callable[[], float], layers: Any = None) -> dict[str, Tensor]:
    """Return the increase of the loss when a single attention head is removed, as a tensor (H,) for each layer.

    This measures the importance of a head (Michel, Levy & Neubig 2019, section 3).

    loss    function that computes the loss with the current model, without dropout. It is called once for the whole
            model and once with each head removed
    layers  selected layers, as in `record`: names, name patterns or indices. By default, all layers
    """
    # This recording stores as little as possible. It only finds the attention layers that the loss uses.
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


def _token_mask(batch: int, tokens: int, lengths: Tensor | None) -> Tensor:
    """Return the mask (B, T), true for tokens that are not padding."""
    if lengths is None:
        return torch.ones(batch, tokens, dtype=torch.bool)
    if len(lengths) != batch or int(lengths.max()) > tokens:
        raise UserError(
            f"found {len(lengths)} lengths up to {int(lengths.max())}: expected {batch} lengths up to {tokens}, as"
            " in the maps"
        )
    return torch.arange(tokens) < lengths.cpu()[:, None]
