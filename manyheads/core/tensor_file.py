"""Writing safetensors files: tensor by tensor, so that a model is never held a second time, and with a checksum.

The same tensors give the same bytes, which the library does not promise as soon as there is metadata.
"""

import hashlib
import json
import zlib
from collections.abc import Mapping
from typing import Any, BinaryIO

import torch
from torch import Tensor

DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip


def write_tensors(file: BinaryIO, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> str:
    """Write a safetensors file and return its SHA-256. `metadata` goes into its header."""
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": dict(metadata)}
    ordered = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))  # keeps every tensor aligned
    end = 0
    for name in ordered:
        tensor, start = tensors[name], end
        end = start + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    digest = hashlib.sha256()
    for name in ("", *ordered):
        piece = _bytes(tensors[name]) if name else len(text).to_bytes(8, "little") + text
        digest.update(piece)
        file.write(piece)
    return digest.hexdigest()


def checksum(tensors: Mapping[str, Tensor]) -> str:
    """CRC-32 of names and values in 8 hexadecimal digits: it tells a flipped bit, and is fast."""
    crc = 0
    for name in sorted(tensors):
        crc = zlib.crc32(_bytes(tensors[name]), zlib.crc32(name.encode(), crc))
    return f"{crc:08x}"


def _bytes(tensor: Tensor) -> Any:
    """The tensor's memory, not copied where it is on the CPU."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
