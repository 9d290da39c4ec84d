"""Function that replaces modules of a model in a copy, which shares all other modules with the original model."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import TypeVar, cast

from torch import nn

M = TypeVar("M", bound=nn.Module)
Change = Callable[[nn.Module, Mapping[str, nn.Module]], nn.Module | None]


def convert(model: M, change: Change) -> M:
    """Return a copy of a model in which some modules are replaced. All other modules are shared with the original.

    change  function of a module and its converted children that returns a replacement, or None to keep the module
    """
    # identity of each original module -> its replacement, so that a module that occurs twice is replaced only once
    converted: dict[int, nn.Module] = {}

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
