from __future__ import annotations

import gzip
import hashlib
import math
import random
import statistics

import PIL.Image
import PIL.ImageEnhance
import pytest

from imagebeam.transforms import elements
from imagebeam.transforms.images import checked_image, pixels, prepare
from imagebeam.transforms.shard import image_hashes
from imagebeam.transforms.shard.image_hashes import HashedImage
from tests.image_sets import make_image, save

IMAGES = [
    HashedImage(b"1" * 16, b"2" * 8, "train", "a/caf\udce9.jpg", "/in/a/caf\udce9.jpg"),
    HashedImage(b"3" * 16, b"", "train", "b.jpg", "gs://b/b.jpg"),
]


def test_hashes_are_read_as_they_were_written() -> None:
    for images in [IMAGES, [], [IMAGES[0]._replace(content=b"")]]:
        data = image_hashes.encode_hashes(images)
        assert image_hashes.decode_hashes(data, "train") == images
        assert image_hashes.encode_hashes(images) == data


def test_damaged_hashes_are_refused() -> None:
    for data in [
        image_hashes.encode_hashes(IMAGES)[:-4],  # cut-short
        b"",  # empty
        gzip.compress(b"{}"),  # other-json
        gzip.compress(b'{"keys": ["a"], "uris": [], "contents": [], "pictures": []}'),  # uneven
    ]:
        with pytest.raises(ValueError, match=r"the hashes of a shard are damaged: |zip\(\) argument|Expecting value"):
            image_hashes.decode_hashes(data, "train")


def test_only_what_is_compared_is_hashed() -> None:
    for contents, pictures in [(True, False), (False, True), (True, True)]:
        data = make_image(1)
        image = prepare.AS_IT_IS.prepare(data)
        hashes = image_hashes.Hasher(contents, pictures).hash(data, image)
        assert hashes.content == (hashlib.sha256(data).digest()[:16] if contents else b"")
        assert len(hashes.picture) == (8 if pictures else 0)
        ref = elements.ImageRef("a.jpg", "/in/a.jpg", split="test")
        assert image_hashes.hashed(ref, image._replace(hashes=hashes)) == HashedImage(
            *hashes, "test", "a.jpg", "/in/a.jpg"
        )


# --- perceptual hash -------------------------------------------------------------------------------------------------


Picture = PIL.Image.Image


def photo(seed: int, size: tuple[int, int] = (320, 240)) -> Picture:
    """Returns smooth colors with some detail, as photos have."""
    rng = random.Random(seed)
    picture = PIL.Image.new("RGB", size)
    for cells in ((3, 2), (6, 5), (20, 15)):
        layer = PIL.Image.frombytes("RGB", cells, rng.randbytes(3 * cells[0] * cells[1]))
        layer = layer.resize(size, PIL.Image.Resampling.BICUBIC)
        picture = layer if cells == (3, 2) else PIL.Image.blend(picture, layer, 0.3)
    return picture


def stored(picture: Picture, format: str = "JPEG", **options: object) -> checked_image.Image:
    return prepare.AS_IT_IS.prepare(save(picture, format, **options))


def hash_of(image: checked_image.Image) -> int:
    return int.from_bytes(image_hashes.hash_image(image), "big")


def scaled(picture: Picture, factor: float) -> Picture:
    return picture.resize((round(picture.width * factor), round(picture.height * factor)), PIL.Image.Resampling.BICUBIC)


def test_changed_image_has_nearly_the_same_hash() -> None:
    for change, limit in [
        (lambda it: stored(it, "JPEG", quality=40), 2),  # saved-again
        (lambda it: stored(it, "PNG"), 2),  # as-png
        (lambda it: stored(it, "JPEG", quality=90, progressive=True), 2),  # progressive
        (lambda it: stored(scaled(it, 0.4)), 4),  # scaled-down
        (lambda it: stored(scaled(it, 2.5)), 4),  # scaled-up
        (lambda it: stored(it.resize((200, 200))), 4),  # stretched
        (lambda it: stored(it.convert("L")), 2),  # gray
        (lambda it: stored(PIL.ImageEnhance.Color(it).enhance(0.5)), 2),  # less-color
        (lambda it: stored(PIL.ImageEnhance.Brightness(it).enhance(0.85)), 4),  # darker
        (lambda it: stored(it.convert("RGBA"), "PNG"), 2),  # with-alpha
        (lambda it: stored(it.convert("P"), "PNG"), 4),  # palette
        (lambda it: stored(it.convert("CMYK")), 4),  # cmyk
    ]:
        distances = [(hash_of(change(photo(seed))) ^ hash_of(stored(photo(seed)))).bit_count() for seed in range(4)]
        assert max(distances) <= limit, distances


def test_different_images_have_hashes_far_apart() -> None:
    hashes = [hash_of(stored(photo(seed))) for seed in range(30)]
    distances = [(one ^ other).bit_count() for one in hashes for other in hashes if one is not other]
    assert min(distances) > 10


def test_image_that_is_not_stored_upright_is_turned_first() -> None:
    upright = stored(photo(1), "PNG")
    turned = pixels.turn_upright(photo(1), 6)  # the picture that orientation 8 turns back
    image = stored(turned, "PNG")._replace(orientation=8)
    assert hash_of(image) == hash_of(upright)
    assert (hash_of(stored(turned, "PNG")) ^ hash_of(upright)).bit_count() > 10


def test_bare_pixels_have_the_hash_of_the_png() -> None:
    gray = photo(2, (28, 28)).convert("L")
    raw = checked_image.Image(gray.tobytes(), "raw", 28, 28, 1, "GRAY")
    assert hash_of(raw) == hash_of(stored(gray, "PNG"))


def test_plain_image_has_a_hash_of_its_mean_alone() -> None:
    for level in [0, 1, 128, 255]:
        assert hash_of(stored(PIL.Image.new("L", (50, 40), level), "PNG")) == (1 << 63 if level else 0)


def test_bits_are_those_of_the_definition() -> None:
    values = [[(x * x * 3 + y * 7 + x * y) % 251 for x in range(32)] for y in range(32)]
    gray = PIL.Image.frombytes("L", (32, 32), bytes(value for row in values for value in row))
    waves = [[math.cos(math.pi * (2 * place + 1) * frequency / 64) for place in range(32)] for frequency in range(8)]
    lowest = [
        sum(values[y][x] * down[y] * across[x] for y in range(32) for x in range(32))
        for down in waves
        for across in waves
    ]
    bits = "".join(str(int(each > statistics.median(lowest))) for each in lowest)
    assert image_hashes.hash_picture(gray).hex() == f"{int(bits, 2):016x}" == "810001bf4bbf5f73"


def test_image_that_cannot_be_decoded_has_no_hash() -> None:
    image = stored(photo(3), "PNG")
    broken = image._replace(data=image.data[:3000] + bytes(100) + image.data[3100:])
    assert image_hashes.hash_image(broken) == b""
    assert image_hashes.hash_image(image, checked_image.Limits(max_pixels=100)) == b""
