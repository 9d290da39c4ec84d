"""AMX in software: functions in place of the instructions, so that any processor runs the kernels for AMX.

Run as a script, it compares lowered models with the originals in float64, and prints a line for each: precision, model,
relative error, and number of tiles loaded. Import it before any other module of `manyheads.inference`.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from llvmlite import binding
from llvmlite.binding.targets import FeatureMap

_features = FeatureMap({**binding.get_host_cpu_features(), "amx-tile": True, "amx-bf16": True, "amx-int8": True})
binding.get_host_cpu_features = lambda: _features
torch.cpu._init_amx = lambda: True  # the system grants the registers

from manyheads.inference.kernels import amx  # noqa: E402

amx.PREFIX = "emulated_"
calls: Counter[str] = Counter()
_thread = threading.local()  # tile registers of each thread


def configure(address: int) -> None:
    shape = np.frombuffer(_memory(address, 64), np.uint8)
    assert shape[0] == 1, "the palette"
    _thread.bytes = np.frombuffer(shape[16:32].tobytes(), np.uint16).astype(int)
    _thread.rows = shape[48:56].astype(int)
    _thread.tiles = np.zeros((8, 16, 64), np.uint8)


def load(tile: int, address: int, stride: int) -> None:
    _thread.tiles[tile] = 0
    for row in range(_thread.rows[tile]):
        line = np.frombuffer(_memory(address + row * stride, _thread.bytes[tile]), np.uint8)
        _thread.tiles[tile, row, : len(line)] = line


def store(tile: int, address: int, stride: int) -> None:
    for row in range(_thread.rows[tile]):
        ctypes.memmove(address + row * stride, _thread.tiles[tile, row].tobytes(), int(_thread.bytes[tile]))


def multiply_bf16(out: int, left: int, right: int) -> None:
    a, b = (_floats(_thread.tiles[tile]).reshape(16, 16, 2) for tile in _checked(out, left, right))
    _thread.tiles[out].view(np.float32)[:] += np.einsum("mkp,knp->mn", a, b)


def multiply_bytes(out: int, left: int, right: int) -> None:
    _checked(out, left, right)
    a = _thread.tiles[left].reshape(16, 16, 4).astype(np.int32)
    b = _thread.tiles[right].view(np.int8).reshape(16, 16, 4).astype(np.int32)
    _thread.tiles[out].view(np.int32)[:] += np.einsum("mkp,knp->mn", a, b)


def release() -> None:
    _thread.tiles = None


def _memory(address: int, size: int) -> Any:
    return (ctypes.c_uint8 * int(size)).from_address(address)


def _floats(tile: Any) -> Any:
    return (tile.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def _checked(out: int, left: int, right: int) -> tuple[int, int]:
    """The processor refuses tiles whose shapes do not fit."""
    rows, width = _thread.rows, _thread.bytes
    assert (rows[out], width[out], width[left] // 4) == (rows[left], width[right], rows[right])
    return left, right


def _counted(name: str, function: Callable[..., None]) -> Callable[..., None]:
    def call(*arguments: int) -> None:
        calls[name] += 1
        function(*arguments)

    return call


TILE, WORD = ctypes.c_int8, ctypes.c_int64
_kept = []
for _name, _function, _kinds in (
    ("ldtilecfg", configure, [WORD]), ("tileloadd64", load, [TILE, WORD, WORD]),
    ("tilestored64", store, [TILE, WORD, WORD]),
    ("tdpbf16ps", multiply_bf16, [TILE] * 3), ("tdpbusd", multiply_bytes, [TILE] * 3), ("tilerelease", release, []),
):  # fmt: skip
    _kept.append(ctypes.CFUNCTYPE(None, *_kinds)(_counted(_name, _function)))
    binding.add_symbol(amx.PREFIX + _name, ctypes.cast(_kept[-1], ctypes.c_void_p).value)


def main() -> None:
    from manyheads.core.runtime import prepare
    from manyheads.inference import compile_model
    from manyheads.inference.kernels.processor import HAS_AMX
    from manyheads.models.gpt import GPT, GPTConfig

    assert HAS_AMX
    settings: tuple[dict[str, Any], ...] = (
        {"width": 64},
        {"width": 128, "heads": 2},
        {"width": 24, "heads": 2},
        {"width": 64, "feed_forward": 100},
    )
    given = torch.randint(1, 90, (3, 75), generator=torch.Generator().manual_seed(1))
    for precision in ("bf16", "int8"):
        for setting in settings:
            torch.manual_seed(0)
            model: Any = GPT(
                GPTConfig(**{"vocab": 131, "layers": 2, "heads": 4, "max_positions": 128, **setting})
            ).eval()
            calls.clear()
            fast = compile_model(model, prepare(precision, 2, device="cpu"))
            with torch.inference_mode(), fast.compute.autocast():
                whole, cache = fast(given), fast.start(3, 75)
                parts = [fast.step(part, cache) for part in given.split([40, 1, 1, 2, 3, 28], dim=1)]
            with torch.no_grad():
                wanted = model.double()(given)
            errors = [float((got.double() - wanted).norm() / wanted.norm()) for got in (whole, torch.cat(parts, 1))]
            assert calls["tilerelease"], "a thread leaves its registers in use"
            print(precision, ",".join(f"{k}={v}" for k, v in setting.items()), max(errors), calls["tileloadd64"])
    sys.stdout.flush()


if __name__ == "__main__":
    main()
