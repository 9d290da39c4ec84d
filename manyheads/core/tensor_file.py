"""Writer of safetensors files with a checksum. It needs no second copy of the model in memory.

Identical tensors give identical bytes. The safetensors library does not guarantee this for files with metadata.
"""

import hashlib
import json
import zlib
from collections.abc import Mapping
from typing import BinaryIO

import torch
from torch import Tensor

DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip


def write_tensors(file: BinaryIO, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> str:
    """Write a safetensors file and return its SHA-256.

    metadata  further information that is stored in the header of the file
    """
    header: dict[str, object] = {} if metadata is None else {"__metadata__": dict(metadata)}
    # Sorting tensors by decreasing element size keeps every tensor aligned.
    ordered = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    end = 0
    for name in ordered:
        tensor, start = tensors[name], end
        end = start + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    encoded_header = json.dumps(header).encode()
    encoded_header += b" " * (-len(encoded_header) % 8)
    digest = hashlib.sha256()
    for name in ("", *ordered):
        chunk = _bytes(tensors[name]) if name else len(encoded_header).to_bytes(8, "little") + encoded_header
        digest.update(chunk)
        file.write(chunk)
    return digest.hexdigest()


def checksum(tensors: Mapping[str, Tensor]) -> str:
    """Return the CRC-32 of the names and values of tensors, as 8 hexadecimal digits.

    This checksum is fast and detects flipped bits.
    """
    crc = 0
    for name in sorted(tensors):
        crc = zlib.crc32(_bytes(tensors[name]), zlib.crc32(name.encode(), crc))
    return f"{crc:08x}"


def _bytes(tensor: Tensor) -> memoryview:
    """Return the memory of a tensor, without a copy if it is on the CPU."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
