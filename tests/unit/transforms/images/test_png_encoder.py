from __future__ import annotations

import io
import random

import pytest
from PIL import Image

from imagebeam.transforms.images import png_encoder

CHANNELS = {"L": 1, "LA": 2, "RGB": 3, "RGBA": 4}


def picture_of(mode: str, size: tuple[int, int]) -> Image.Image:
    noise = random.Random(0).randbytes(size[0] * size[1] * CHANNELS[mode])
    return Image.frombytes(mode, size, noise)


def save(picture: Image.Image, level: int) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, "PNG", compress_level=level)
    return buffer.getvalue()


@pytest.mark.parametrize("mode", list(CHANNELS))
@pytest.mark.parametrize(
    "size", [(1, 1), (28, 28), (300, 200), (256, 256), (16384, 4), (16385, 1), (300, 300)], ids=str
)
def test_png_has_the_bytes_that_pillow_saves(mode: str, size: tuple[int, int]) -> None:
    picture = picture_of(mode, size)
    for level in (0, 6, 9) if size == (28, 28) else (1,):
        assert png_encoder.encode_png(picture, level) == save(picture, level)


def test_flat_png_has_the_bytes_that_pillow_saves() -> None:
    picture = Image.new("RGB", (100, 100), (1, 2, 3)).crop((10, 10, 90, 90))
    assert png_encoder.encode_png(picture, 6) == save(picture, 6)


def test_pillow_without_its_inner_encoder_saves_as_usual(monkeypatch: pytest.MonkeyPatch) -> None:
    picture = picture_of("L", (28, 28))
    expected = png_encoder.encode_png(picture, 6)
    monkeypatch.delattr(Image, "_getencoder")
    monkeypatch.setattr(Image.Image, "save", lambda self, file, *_, **options: file.write(f"{options}".encode()))
    assert png_encoder.encode_png(picture, 6) == b"{'compress_level': 6}" != expected


class _Broken:
    def setimage(self, *_: object) -> None: ...

    def encode(self, _: int) -> tuple[int, int, bytes]:
        return 0, -2, b""

    def cleanup(self) -> None: ...


def test_failure_of_the_encoder_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "_getencoder", lambda *_: _Broken())
    with pytest.raises(OSError, match="PNG encoder ended with status -2"):
        png_encoder.encode_png(picture_of("L", (28, 28)), 6)
