"""Replacement of parts of a model, for a copy that shares all other parts with it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import TypeVar, cast

from torch import nn

M = TypeVar("M", bound=nn.Module)
Change = Callable[[nn.Module, Mapping[str, nn.Module]], nn.Module | None]


def convert(model: M, change: Change) -> M:
    """Return the model with replaced parts. Parts without a change are shared with the original model.

    change  called with each module and its converted children; returns a replacement, or None to keep the module
    """
    converted: dict[int, nn.Module] = {}  # by the identity of the original, so that a module in two places is one

    def visit(module: nn.Module) -> nn.Module:
        if id(module) not in converted:
            children = {name: visit(child) for name, child in module.named_children()}
            result = change(module, children)
            if result is None:
                result = module
                if any(children[name] is not child for name, child in module.named_children()):
                    result = copy.copy(module)
                    result._modules = {**module._modules, **children}
            converted[id(module)] = result
        return converted[id(module)]

    return cast(M, visit(model))
