"""The coefficients of a baseline JPEG, read without libjpeg: what the tests of lossless turns compare.

Source: ITU-T T.81, annexes B and F.2, https://www.w3.org/Graphics/JPEG/itu-t81.pdf.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

ZIGZAG = sorted(range(64), key=lambda i: (i // 8 + i % 8, i // 8 if (i // 8 + i % 8) % 2 else i % 8))


class Component(NamedTuple):
    """One component: its sampling factors, quantization table [v, u] and blocks [rows, columns, v, u]."""

    width_factor: int
    height_factor: int
    table: np.ndarray
    blocks: np.ndarray


def segments(jpeg: bytes) -> list[tuple[int, bytes]]:
    """Returns code and content of each segment up to the first scan, and then the data after its header."""
    found, position = [], 2
    while not found or found[-1][0] != 0xDA:
        length = int.from_bytes(jpeg[position + 2 : position + 4], "big")
        found.append((jpeg[position + 1], jpeg[position + 4 : position + 2 + length]))
        position += 2 + length
    return [*found, (0, jpeg[position:])]


def in_natural_order(values: list[int]) -> np.ndarray:
    table = np.zeros(64, int)
    table[ZIGZAG] = values
    return table.reshape(8, 8)


def read(jpeg: bytes) -> list[Component]:
    """Returns the components of a JPEG of one interleaved scan, without the blocks that only fill an MCU."""
    tables: dict[int, np.ndarray] = {}
    codes: dict[int, dict[str, int]] = {}
    interval = 0
    for code, content in segments(jpeg):
        if code == 0xDB:
            for start in range(0, len(content), 65):
                tables[content[start]] = in_natural_order(list(content[start + 1 : start + 65]))
        elif code == 0xC4:
            while content:
                codes[content[0]], content = read_huffman(content)
        elif code == 0xDD:
            interval = int.from_bytes(content, "big")
        elif code in (0xC0, 0xC1):
            height, width = int.from_bytes(content[1:3], "big"), int.from_bytes(content[3:5], "big")
            frame = [(factors >> 4, factors & 15, table) for factors, table in zip(content[7::3], content[8::3])]
        elif code == 0xDA:
            coding = [(each >> 4, 0x10 | each & 15) for each in content[2:-3:2]]
    widest, highest = max(w for w, _, _ in frame), max(h for _, h, _ in frame)
    sizes = [(-(-height * h // (8 * highest)), -(-width * w // (8 * widest))) for w, h, _ in frame]
    if len(frame) == 1:
        frame = [(1, 1, frame[0][2])]
        sizes = [(-(-height // 8), -(-width // 8))]
        widest = highest = 1
    columns, rows = -(-width // (8 * widest)), -(-height // (8 * highest))
    blocks = [np.zeros((rows * h, columns * w, 8, 8), int) for w, h, _ in frame]
    data = segments(jpeg)[-1][1]
    parts = re.split(rb"\xff[\xd0-\xd7]", data[: re.search(rb"\xff[^\x00\xd0-\xd7]", data).start()])  # type: ignore[union-attr]
    mcu = 0
    for part in parts:
        bits = "".join(f"{byte:08b}" for byte in part.replace(b"\xff\0", b"\xff"))
        position, last = 0, [0] * len(frame)
        for _ in range(interval or rows * columns):
            if mcu == rows * columns:
                break
            for index, (w, h, _) in enumerate(frame):
                for y in range(h):
                    for x in range(w):
                        values, position = read_block(bits, position, codes[coding[index][0]], codes[coding[index][1]])
                        last[index] = values[0] = values[0] + last[index]
                        place = mcu // columns * h + y, mcu % columns * w + x
                        blocks[index][place] = in_natural_order(values)
            mcu += 1
    return [Component(w, h, tables[t], b[:r, :c]) for (w, h, t), b, (r, c) in zip(frame, blocks, sizes)]


def read_huffman(content: bytes) -> tuple[dict[str, int], bytes]:
    found, code, position = {}, 0, 17
    for length, count in enumerate(content[1:17], 1):
        for _ in range(count):
            found[f"{code:0{length}b}"] = content[position]
            code, position = code + 1, position + 1
        code <<= 1
    return found, content[position:]


def read_block(bits: str, position: int, dc: dict[str, int], ac: dict[str, int]) -> tuple[list[int], int]:
    """Returns 64 values in zigzag order, and where the next block begins."""
    values, index = [0] * 64, 0
    while index < 64:
        codes, start = (ac if index else dc), position
        while bits[start:position] not in codes:
            position += 1
            assert position <= start + 17, "no Huffman code"
        run, size = divmod(codes[bits[start:position]], 16)
        if index and not size and run < 15:
            break
        index += run
        if size:
            value = int(bits[position : position + size], 2)
            values[index] = value if bits[position] == "1" else value - (1 << size) + 1
            position += size
        index += 1
    return values, position


def turn(component: Component, mirrors_columns: bool, mirrors_rows: bool, swaps_sides: bool) -> Component:
    """Returns the component of the turned image, by the symmetries of cosine waves."""
    width, height, table, blocks = component
    signs = (-1) ** np.arange(8)
    if mirrors_columns:
        blocks = blocks[:, ::-1] * signs
    if mirrors_rows:
        blocks = blocks[::-1] * signs[:, None]
    if swaps_sides:
        return Component(height, width, table.T, blocks.transpose(1, 0, 3, 2))
    return Component(width, height, table, blocks)
