from __future__ import annotations

import gzip
import hashlib

import pytest

from imagebeam.transforms import elements
from imagebeam.transforms.images import prepare
from imagebeam.transforms.shard import image_hashes
from imagebeam.transforms.shard.image_hashes import HashedImage
from tests.image_sets import make_image

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
