"""Maximum number of bytes of live tensors."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Alive(TorchDispatchMode):
    """Counts, while the block runs, the tensors that are made in it, on any device, gradients among them.

    now   bytes of those that still exist
    most  the largest that `now` was

    What existed before is not counted, nor what a kernel needs inside.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self._known: set[int] = set()  # storages that are counted, or were there before

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        for storage in _storages((args, kwargs)):
            self._known.add(storage._cdata)
        result = function(*args, **(kwargs or {}))
        for storage in _storages(result):
            if storage._cdata not in self._known:
                self._known.add(storage._cdata)
                self.now += storage.nbytes()
                self.most = max(self.most, self.now)
                weakref.finalize(storage, self._gone, storage._cdata, storage.nbytes())
        return result

    def _gone(self, storage: int, size: int) -> None:
        self._known.discard(storage)
        self.now -= size


def _storages(values: Any) -> list[torch.UntypedStorage]:
    return [value.untyped_storage() for value in tree_leaves(values) if isinstance(value, Tensor)]
