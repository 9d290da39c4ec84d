"""Replacement of parts of a model, for a copy that shares all other parts with it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping

from torch import nn

Change = Callable[[nn.Module, Mapping[str, nn.Module]], nn.Module | None]


def convert(module: nn.Module, change: Change, converted: dict[int, nn.Module]) -> nn.Module:
    """Return the module with replaced parts. Parts without a change are shared with the original module.

    change     function of a module and its converted children. It returns a replacement, or None for no change.
    converted  results by the identity of the original, so that a module in two places is replaced by one
    """
    if id(module) not in converted:
        children = {name: convert(child, change, converted) for name, child in module.named_children()}
        result = change(module, children)
        if result is None:
            result = module
            if any(children[name] is not child for name, child in module.named_children()):
                result = copy.copy(module)
                result._modules = {**module._modules, **children}
        converted[id(module)] = result
    return converted[id(module)]
