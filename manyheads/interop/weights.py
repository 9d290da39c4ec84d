"""Read the weight files of a model directory: a single file, or shards with an index that lists their tensors.

    model.safetensors    or model.safetensors.index.json with shards
    pytorch_model.bin    or pytorch_model.bin.index.json: pickles, read only on request, and only as plain tensors

Every error is a UserError with a one-line message that names the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from warnings import catch_warnings

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from manyheads.core.tensor_file import checksum
from manyheads.errors import UserError, shown
from manyheads.files import parse_json, regular

_DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "BOOL": torch.bool,
}  # fmt: skip
SAFE, PICKLED = "model.safetensors", "pytorch_model.bin"
# Metadata key of a checksum that Manyheads adds to safetensors files, because the format itself has no checksum.
CHECKSUM = "crc32"


def weight_files(path: Path, name: str) -> list[Path]:
    """Return the paths of a directory's weight files: the file `name`, or the shards of its index.

    The list is empty if neither exists.
    """
    index = path / f"{name}.index.json"
    if (path / name).is_file() or not index.is_file():
        return [path / name] if (path / name).is_file() else []
    shards = [path / shard for shard in sorted(set(_weight_map(index).values()))]
    if absent := [shard.name for shard in shards if not shard.is_file()]:
        raise UserError(f"{path}: found no {shown(absent)}, but {index.name} refers to it; copy the model again")
    return shards


def read_shapes(path: Path) -> dict[str, Tensor]:
    """Read the shapes and dtypes of all tensors in a directory's safetensors files.

    Return tensors on the meta device.
    """

    def read(file: Path) -> dict[str, Tensor]:
        with _undamaged(file), safe_open(file, framework="pt") as opened:
            parts = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118  # it is no dict
            try:
                return {
                    name: torch.empty(part.get_shape(), dtype=_DTYPES.get(part.get_dtype(), torch.uint8), device="meta")
                    for name, part in parts.items()
                }
            # PyTorch rejects, for example, a shape with a zero and large sizes, because its strides overflow.
            except RuntimeError as error:
                raise UserError(f"{file}: damaged ({error}); copy or save the model again") from None

    return _read(path, SAFE, read)


def read_safe(path: Path) -> dict[str, Tensor]:
    """Read all tensors of a directory's safetensors files."""

    return _read(path, SAFE, _safe_tensors)


def _safe_tensors(file: Path) -> dict[str, Tensor]:
    with _undamaged(file):
        with safe_open(file, framework="pt") as opened:
            stated = (opened.metadata() or {}).get(CHECKSUM)
        tensors = load_file(file)
    if stated not in (None, checksum(tensors)):
        raise UserError(f"{file}: damaged, the checksum does not match; copy or save the model again")
    return tensors


@contextmanager
def _undamaged(file: Path) -> Iterator[None]:
    """Context manager that converts exceptions of the library to one-line errors with the name of the file."""
    try:
        yield
    except (SafetensorError, OSError) as error:
        raise UserError(f"{file}: truncated or damaged ({error}); copy or save the model again") from None


def read_pickled(path: Path) -> dict[str, Tensor]:
    """Read all tensors of a directory's pickle files.

    No code in the files is executed: a file that contains other objects than tensors is an error.
    """

    return _read(path, PICKLED, _pickled_tensors)


def _pickled_tensors(file: Path) -> dict[str, Tensor]:
    try:
        with catch_warnings(action="ignore"):  # Ignore PyTorch's warnings about types that are rejected below.
            tensors = torch.load(file, map_location="cpu", weights_only=True)
    # A damaged file may cause any exception. PyTorch's message is not shown, because it recommends to load the file
    # without weights_only, which would execute its code.
    except Exception:
        raise UserError(
            f"{file}: expected plain weights; the file is damaged or contains other objects, and was not loaded. "
            "Copy it again, or get the model as safetensors"
        ) from None
    plain = isinstance(tensors, dict) and all(isinstance(name, str) for name in tensors)
    if not (plain and all(isinstance(tensor, Tensor) for tensor in tensors.values())):
        content = (
            f"a dict of {', '.join(map(str, tensors))[:80]}" if isinstance(tensors, dict) else type(tensors).__name__
        )
        raise UserError(
            f"{file}: expected plain weights (a dict of names and tensors, as from model.state_dict()), found {content}"
        )
    for name, tensor in tensors.items():
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
            kind = "quantized" if tensor.is_quantized else "without content" if tensor.is_meta else "sparse"
            raise UserError(
                f"{file}: {name} is {kind}; expected dense tensors, save the model without quantization or sparsity"
            )
    return tensors


def read_file(file: Path) -> dict[str, Tensor]:
    """Read all tensors of one file: a `.safetensors` file, or a pickle that contains only plain tensors."""
    return _safe_tensors(file) if file.suffix == ".safetensors" else _pickled_tensors(file)


def _read(path: Path, name: str, read: Callable[[Path], dict[str, Tensor]]) -> dict[str, Tensor]:
    """Read the tensors of a directory's weight files. Each shard must contain exactly the tensors that the index lists.

    name  name of the single weight file; an index has the same name with the suffix .index.json
    read  function that reads the tensors of one file
    """
    files = weight_files(path, name)
    if [file.name for file in files] == [name]:
        return read(files[0])
    index = path / f"{name}.index.json"
    tensors: dict[str, Tensor] = {}
    where = _weight_map(index)
    for file in files:
        content = read(file)
        listed = {tensor for tensor, shard in where.items() if shard == file.name}
        if differing := sorted(listed ^ set(content)):
            raise UserError(
                f"{file}: the tensors differ from those in {index.name}, for example {differing[0]}; copy the file"
                " again"
            )
        tensors |= content
    return tensors


def _weight_map(index: Path) -> dict[str, str]:
    try:
        where: Any = parse_json(regular(index).read_text(encoding="utf-8"))["weight_map"]
        shards = set(where.values())
        plain = all(isinstance(shard, str) and shard == Path(shard).name != "" for shard in shards)
    except (ValueError, KeyError, TypeError, AttributeError):
        plain = False
    if not plain:
        raise UserError(
            f"{index}: expected a 'weight_map' from tensors to files of this directory; copy the file again"
        )
    return where
