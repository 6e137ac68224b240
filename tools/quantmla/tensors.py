# SPDX-License-Identifier: Apache-2.0
"""Reads and writes safetensors files with NumPy alone; BF16 is widened to float32."""
import hashlib
import json
import os
import struct

import numpy as np

_NUMPY = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "U8": "|u1"}
_NAMES = {np.dtype(value): key for key, value in _NUMPY.items()}


def _widen(raw, dtype):
    if dtype == "BF16":
        return (np.frombuffer(raw, "<u2").astype("<u4") << 16).view("<f4")
    if dtype not in _NUMPY:
        raise ValueError(f"dtype {dtype} is not supported")
    return np.frombuffer(raw, _NUMPY[dtype])


def read_file(path):
    """All tensors of one file: {name: array}."""
    with open(path, "rb") as file:
        data = file.read()
    if len(data) < 8:
        raise ValueError(f"{path}: too short for a safetensors file")
    (length,) = struct.unpack("<Q", data[:8])
    if length > len(data) - 8:
        raise ValueError(f"{path}: header of {length} bytes does not fit the file")
    header = json.loads(data[8:8 + length])
    body = memoryview(data)[8 + length:]
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        tensors[name] = _widen(body[begin:end], entry["dtype"]).reshape(entry["shape"])
    return tensors


def write_file(path, tensors, metadata=None):
    """Writes {name: array} in the order given; the same input gives the same bytes."""
    header, offset = {}, 0
    if metadata:
        header["__metadata__"] = metadata
    for name, array in tensors.items():
        header[name] = {"dtype": _NAMES[array.dtype.newbyteorder("<") if array.dtype.itemsize > 1 else array.dtype],
                        "shape": list(array.shape), "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for array in tensors.values():
            file.write(np.ascontiguousarray(array).tobytes())


def shards(directory):
    """Names of a checkpoint's weight files, in ascending order."""
    index = os.path.join(directory, "model.safetensors.index.json")
    if not os.path.exists(index):
        return ["model.safetensors"]
    with open(index, encoding="utf-8") as file:
        return sorted(set(json.load(file)["weight_map"].values()))


def read_checkpoint(directory):
    """Every tensor of a Hugging Face checkpoint."""
    tensors = {}
    for name in shards(directory):
        tensors.update(read_file(os.path.join(directory, name)))
    return tensors


def checkpoint_digest(directory):
    """Hex SHA-256 over the concatenated (raw) SHA-256 digests of the weight files, by ascending name."""
    outer = hashlib.sha256()
    for name in shards(directory):
        with open(os.path.join(directory, name), "rb") as file:
            outer.update(hashlib.file_digest(file, "sha256").digest())
    return outer.hexdigest()
