"""The search for duplicates without Beam: its settings, the hashes of images, and the counts of what was found.

Hashes of a shard's images are stored beside it until the commit: gzip-compressed JSON with columns of equal length in
the order of the shard's records.

The hash of a picture is pHash: gray, scaled to 32 x 32, two-dimensional DCT-II, and one bit for each of the 8 x 8
lowest frequencies, whether it is above their median. Few of these 64 bits change when a picture is saved again, scaled
or recolored. All sums are of integers, so that the bits are the same on every machine.

Source: https://www.hackerfactor.com/blog/index.php?/archives/432-Looks-Like-It.html; `phash` of
https://github.com/JohannesBuchner/imagehash does the same with floats.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import gzip
import hashlib
import json
import math
import zlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from imagebeam import errors, plural
from imagebeam.transforms import elements
from imagebeam.transforms.images import checked_image, image_formats, pillow_decoder, pixels

if TYPE_CHECKING:
    import numpy as np
    import PIL.Image

CONTENT_BYTES = 16  # two of 10**12 different images are equal in them with a probability of 10**-15
HASHES_SUFFIX = ".hashes.json.gz"
_LEVEL = 1


class HashedImage(NamedTuple):
    """One image with its hashes."""

    content: bytes
    picture: bytes
    split: str
    key: str
    uri: str


@dataclasses.dataclass(frozen=True)
class Hasher:
    """Computes the hashes of images that are compared."""

    contents: bool = True  # whether their bytes are hashed
    pictures: bool = False  # whether their pixels are hashed
    limits: checked_image.Limits = checked_image.NO_LIMITS  # limits on what is decoded

    def hash(self, source: bytes, image: checked_image.Image) -> checked_image.ImageHashes:
        """Returns the hashes of an image.

        SHA-256, because processors have instructions for it: 0.2 ms for 110 kB, 0.35 ms with BLAKE2b.

        Args:
            source: the bytes of the image in its source.
            image: the same as it is stored.
        """
        content = hashlib.sha256(source).digest()[:CONTENT_BYTES] if self.contents else b""
        picture = hash_image(image, self.limits) if self.pictures else b""
        return checked_image.ImageHashes(content, picture)


def hashed(ref: elements.ImageRef, image: checked_image.Image) -> HashedImage:
    """Returns the hashes of an image with its key."""
    assert image.hashes is not None
    return HashedImage(*image.hashes, ref.split, ref.key, ref.uri)


def encode_hashes(images: Sequence[HashedImage]) -> bytes:
    """Returns the content of the file of one shard: the same bytes for the same images."""
    fields = {
        "keys": [image.key for image in images],
        "uris": [image.uri for image in images],
        "contents": [base64.b64encode(image.content).decode() for image in images],
        "pictures": [base64.b64encode(image.picture).decode() for image in images],
    }
    return gzip.compress(json.dumps(fields, separators=(",", ":")).encode(), _LEVEL, mtime=0)


def decode_hashes(data: bytes, split: str) -> list[HashedImage]:
    """Parses the result of `encode_hashes`.

    Args:
        data: content of the file.
        split: of all images of the shard.

    Raises:
        ValueError: if the file is damaged.
    """
    try:
        fields = json.loads(gzip.decompress(data))
        contents = [base64.b64decode(each) for each in fields["contents"]]
        pictures = [base64.b64decode(each) for each in fields["pictures"]]
        rows = zip(contents, pictures, fields["keys"], fields["uris"], strict=True)
        return [HashedImage(content, picture, split, key, uri) for content, picture, key, uri in rows]
    except (OSError, EOFError, KeyError, TypeError, zlib.error) as e:
        raise ValueError(f"the hashes of a shard are damaged: {type(e).__name__}: {e}") from e


_SIDE_PX = 32
_DRAFT_PX = 2 * _SIDE_PX  # a JPEG is decoded at a part of its size, but not below this
_NUM_FREQUENCIES = 8
_SCALE = 1 << 12  # factor of the cosines: 32 * 32 * 255 * _SCALE**2 is far below 2**63


def hash_image(image: checked_image.Image, allowed: checked_image.Limits = checked_image.NO_LIMITS) -> bytes:
    """Returns the perceptual hash of an image as it is stored, turned upright; 8 bytes.

    Returns b"" if its pixels cannot be decoded, or would take too much memory: such an image is like no other.

    Args:
        image: the result of a check.
        allowed: limits of what is decoded.
    """
    if image.format not in (image_formats.JPEG, image_formats.PNG, image_formats.WEBP):
        return hash_picture(pixels.from_bytes(image.data, (image.height, image.width, image.channels)))
    try:
        picture = pillow_decoder.open_lazily(image.data, image.format)
        picture.draft("L", (_DRAFT_PX, _DRAFT_PX))  # luma alone, scaled while it is decoded; PNGs stay as they are
        allowed.check_decoded(picture.height, picture.width, image.format)
        pillow_decoder.load(picture)
        return hash_picture(picture, image.orientation)
    except checked_image.BadImageError:
        return b""


def hash_picture(picture: PIL.Image.Image, orientation: int = checked_image.UPRIGHT) -> bytes:
    """Returns the perceptual hash of decoded pixels.

    Args:
        picture: in any mode.
        orientation: the EXIF orientation that is applied first.
    """
    import numpy as np  # late: a writer process needs 15 MB more with it

    gray = pixels.to_eight_bits(picture).convert("L")
    small = gray.resize((_SIDE_PX, _SIDE_PX), pillow_decoder.pillow().Resampling.LANCZOS)
    values = np.asarray(pixels.turn_upright(small, orientation)).astype(np.int64)
    lowest = (_cosines() @ values @ _cosines().T).reshape(-1)
    lower, upper = np.sort(lowest)[lowest.size // 2 - 1 : lowest.size // 2 + 1]
    return np.packbits(2 * lowest > lower + upper).tobytes()


@functools.cache
def _cosines() -> np.ndarray:
    """Returns int64 [8, 32]: by frequency and place, the cosines of the DCT-II times `_SCALE`."""
    import numpy as np

    angle = math.pi / (2 * _SIDE_PX)
    return np.array(
        [
            [round(_SCALE * math.cos((2 * place + 1) * frequency * angle)) for place in range(_SIDE_PX)]
            for frequency in range(_NUM_FREQUENCIES)
        ],
        dtype=np.int64,
    )


Action: TypeAlias = Literal["off", "report", "drop", "fail"]
MAX_DISTANCE = 6  # bits; see match_hashes for what each more costs
_PURPOSE = b"imagebeam.near"
_MAX_PLACE = 255
_TRAIN = "train"  # a split whose name begins so keeps its image last


@dataclasses.dataclass(frozen=True)
class DuplicateSettings:
    """Settings for images that repeat others."""

    exact: Action = "off"  # the same bytes
    near: Action = "off"  # perceptual hashes that differ in few bits
    near_distance: int = 4  # bits in which they differ at most
    keep_in: tuple[str, ...] = ()  # splits that keep their image, before all others

    def only(self, *actions: Action) -> DuplicateSettings:
        """Returns the settings without the searches that lead to other actions."""
        return dataclasses.replace(
            self,
            exact=self.exact if self.exact in actions else "off",
            near=self.near if self.near in actions else "off",
        )

    @property
    def is_on(self) -> bool:
        return self.exact != "off" or self.near != "off"

    @property
    def actions(self) -> dict[str, Action]:
        """The action for each kind."""
        return {"exact": self.exact, "near": self.near}

    def hasher(self, allowed: checked_image.Limits) -> Hasher | None:
        """Returns what computes the hashes that are compared; None if there are none."""
        return Hasher(self.exact != "off", self.near != "off", allowed) if self.is_on else None

    def place_of_split(self, split: str) -> int:
        """Returns a number from 0 to 255: of two equal images, the one in the split with the smaller number stays.

        Splits named in `keep_in` come first, those that begin with "train" last. So an image that is in the training
        and the test set stays in the test set.
        """
        if split in self.keep_in:
            return min(self.keep_in.index(split), _MAX_PLACE - 2)
        return _MAX_PLACE if split.startswith(_TRAIN) else _MAX_PLACE - 1

    def order_of(self, image: HashedImage) -> tuple[int, bytes]:
        """Returns the order of images with equal hashes: by split, then by key. The first one stays."""
        return self.place_of_split(image.split), elements.encode_key(image.key)

    def rank_of(self, image: HashedImage) -> int:
        """Returns the order of images with different hashes, an unsigned integer of 64 bits.

        By split, then by a hash of the key, because keys do not fit into 64 bits. A hash has the smallest rank of the
        images with it.
        """
        return self.place_of_split(image.split) << 56 | elements.hash64(image.key, 0, _PURPOSE) >> 8


OFF = DuplicateSettings()

# --- counts ----------------------------------------------------------------------------------------------------------

NUM_EXAMPLES = 3  # that an error names
Counts: TypeAlias = Mapping[str, Mapping[str, Mapping[str, int]]]  # as in `Catalog.duplicates`
_WHAT = {"exact": "repeat the bytes of others", "near": "look like others"}


class StoredDuplicates(NamedTuple):
    """One file of duplicates in the staging folder."""

    name: str
    counts: Mapping[tuple[str, str, str], int]  # images by kind, their split, and the split of the image they repeat
    examples: tuple[elements.Duplicate, ...]  # the first of each kind


def count_duplicates(settings: DuplicateSettings, stored: Sequence[StoredDuplicates]) -> Counts:
    """Returns `{kind: {split: {split of the image that is repeated: images}}}` over all files.

    A kind without a duplicate has an empty mapping; {} if no search is on.
    """
    totals: dict[str, dict[str, dict[str, int]]] = {
        kind: {} for kind, action in settings.actions.items() if action != "off"
    }
    for (kind, split, first_split), number in sorted(row for each in stored for row in each.counts.items()):
        by_split = totals[kind].setdefault(split, {})
        by_split[first_split] = by_split.get(first_split, 0) + number
    return totals


def describe_counts(by_split: Mapping[str, Mapping[str, int]]) -> str:
    """Returns the counts of one kind: `12 images (train of test 3, within train 9)`, those across splits first."""
    pairs = [(split == first, split, first, n) for split, counts in by_split.items() for first, n in counts.items()]
    texts = [
        f"within {split} {number:,}" if is_same else f"{split} of {first} {number:,}"
        for is_same, split, first, number in sorted(pairs)
    ]
    total = sum(number for *_, number in pairs)
    return plural.count(total, "image") + (f" ({', '.join(texts)})" if texts else "")


def find_refusal(
    settings: DuplicateSettings, counts: Counts, stored: Sequence[StoredDuplicates] = ()
) -> errors.DuplicatesError | None:
    """Returns the error of a run that finds duplicates where there must be none; None if it may be committed.

    Args:
        settings: of the run.
        counts: of its duplicates.
        stored: the files, for examples.
    """
    kind = next((kind for kind, action in settings.actions.items() if action == "fail" and counts.get(kind)), None)
    if kind is None:
        return None
    every = sorted(
        (example for each in stored for example in each.examples if example.kind == kind),
        key=lambda example: (example.split == example.first_split, ascii(example.key)),
    )
    examples = "; ".join(
        f"{example.key!r} of {example.split} repeats {example.first_key!r} of {example.first_split}"
        for example in every[:NUM_EXAMPLES]
    )
    return errors.DuplicatesError(
        "duplicates-found",
        f"{describe_counts(counts[kind])} {_WHAT[kind]}, duplicates.{kind} is fail: nothing was committed"
        + (f"; such as {examples}" if examples else "")
        + f"; remove them from the input, or set duplicates.{kind}: drop or report",
    )
