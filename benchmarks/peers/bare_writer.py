"""Writes as fast as plain Python can on this machine: no checks, no framework, no copies. This is the limit.

The same examples as tfrecord_loop.py. The image is last in the Example, so that its bytes go from os.read to
os.writev as they are; the checksum is extended over the parts. Two forked processes take half of the shards each.

Source: https://protobuf.dev/programming-guides/encoding/ and tensorflow/core/lib/io/record_writer.h.
"""

from __future__ import annotations

import multiprocessing
import os
import struct
import sys
from collections.abc import Sequence

from google_crc32c import extend

_LENGTH = struct.Struct("<Q")
_CRC = struct.Struct("<I")
_SIZE = struct.Struct(">HH")
NUM_PROCESSES = 2


def varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def delimited(payload: bytes) -> bytes:
    """Returns a length-delimited field with number 1, like all fields but one of an Example."""
    return b"\x0a" + varint(len(payload)) + payload


def entry(key: bytes, value: bytes | int) -> bytes:
    """Returns one feature of the Example: an entry of the map in Features."""
    if isinstance(value, int):
        packed = delimited(varint(value))
        feature = b"\x1a" + varint(len(packed)) + packed
    else:
        feature = delimited(delimited(value))
    return delimited(delimited(key) + b"\x12" + varint(len(feature)) + feature)


def jpeg_size(data: bytes) -> tuple[int, int]:
    """Returns height and width from the frame header, after the segments before it; 0, 0 if not a JPEG."""
    position = 2 if data[:2] == b"\xff\xd8" else len(data)
    while position + 9 <= len(data):
        marker = data[position + 1]
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            return _SIZE.unpack_from(data, position + 5)
        position += 2 + (data[position + 2] << 8 | data[position + 3])
    return 0, 0


def masked(crc: int) -> int:
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def write_shards(shard_indices: Sequence[int], num_shards: int, names: list[str], source: str, output: str) -> None:
    classes = sorted({name[:9] for name in names})
    labels = {name: entry(b"image/class/label", label) for label, name in enumerate(classes)}
    image_format = entry(b"image/format", b"JPEG")
    image_key = delimited(b"image/encoded")
    folder = os.open(source, os.O_RDONLY)
    for shard_index in shard_indices:
        path = os.path.join(output, f"train-{shard_index:05d}-of-{num_shards:05d}.tfrecord")
        shard = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        start, end = (len(names) * i // num_shards for i in (shard_index, shard_index + 1))
        for name in names[start:end]:
            file = os.open(name, os.O_RDONLY, dir_fd=folder)
            image = os.read(file, os.fstat(file).st_size)
            os.close(file)
            size = len(image)
            height, width = jpeg_size(image)
            in_list = b"\x0a" + varint(size)
            in_feature = b"\x0a" + varint(len(in_list) + size)
            before = image_key + b"\x12" + varint(len(in_feature) + len(in_list) + size) + in_feature + in_list
            entries = image_format + entry(b"image/height", height) + entry(b"image/width", width)
            entries += entry(b"image/filename", name.encode()) + labels[name[:9]]
            entries += b"\x0a" + varint(len(before) + size) + before
            prefix = b"\x0a" + varint(len(entries) + size) + entries
            length = _LENGTH.pack(len(prefix) + size)
            header = length + _CRC.pack(masked(extend(0, length))) + prefix
            os.writev(shard, (header, image, _CRC.pack(masked(extend(extend(0, prefix), image)))))
        os.close(shard)
    os.close(folder)


def main(source: str, output: str, num_shards: str) -> None:
    names = sorted(name for name in os.listdir(source) if name.endswith(".JPEG"))
    count = int(num_shards)
    arguments = [(range(i, count, NUM_PROCESSES), count, names, source, output) for i in range(NUM_PROCESSES)]
    with multiprocessing.get_context("fork").Pool(NUM_PROCESSES) as pool:
        pool.starmap(write_shards, arguments, chunksize=1)


if __name__ == "__main__":
    main(*sys.argv[1:])
