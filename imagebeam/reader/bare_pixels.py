"""Images that are stored as bare pixels, not as files: rows from top to bottom, pixels from the left, channels."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from imagebeam import catalog as catalog_lib
from imagebeam import errors, features

FORMAT = "raw"
SHAPE = ("image/height", "image/width", "image/channels")
MAX_CHANNELS = 4


class Pixels(NamedTuple):
    """The pixels of one image."""

    data: bytes  # one byte for each value: height * width * channels
    height: int
    width: int
    channels: int  # 1 gray, 2 gray and alpha, 3 RGB, 4 RGB and alpha


def is_raw(catalog: catalog_lib.Catalog, formats: Collection[str]) -> bool:
    """Returns whether the images of a dataset are stored as pixels: all of them are, or none.

    Args:
        catalog: catalog of the dataset.
        formats: formats that were counted in it; empty if the statistics are lost, then its config decides.
    """
    encoded = next((feature for feature in catalog.features if feature.source == features.ENCODED), None)
    if encoded is None:
        return False
    if encoded.kind != features.BYTES:
        return True
    if formats:
        return set(formats) == {FORMAT}
    encode = catalog.config.get("image", {}).get("encode", "keep")
    return encode == FORMAT or (encode == "keep" and catalog.config.get("source", {}).get("by") in ("idx", "arrays"))


def formats_in(statistics: Mapping[str, Any], split: str | None = None) -> frozenset[str]:
    """Returns the formats of the images in a split, or in all splits, from the statistics of a dataset."""
    counted = statistics.values() if split is None else [statistics.get(split, {})]
    return frozenset(name for each in counted for name in each.get("formats", {}))


def check_shape_is_stored(catalog: catalog_lib.Catalog) -> None:
    """Checks that a dataset of bare pixels holds height, width and channels of each image.

    Raises:
        ConfigError: if it does not.
    """
    stored = {feature.source for feature in catalog.features}
    dropped = [source for source in SHAPE if source not in stored]
    if dropped:
        raise errors.ConfigError(
            "pixels-no-shape",
            f"{catalog.name} holds images as bare pixels, which have no shape without {', '.join(dropped)}: "
            f"convert again without dropping {'it' if len(dropped) == 1 else 'them'} in features",
        )


class PixelReader:
    """Finds the pixels in parsed examples of a dataset of bare pixels."""

    def __init__(self, catalog: catalog_lib.Catalog):
        """Checks the catalog with `check_shape_is_stored`."""
        check_shape_is_stored(catalog)
        keys = {feature.source: feature.key for feature in catalog.features}
        self._image = keys[features.ENCODED]
        self._shape = [keys[source] for source in SHAPE]

    def read(self, example: Mapping[str, Sequence[Any]]) -> Pixels:
        """Returns the pixels of an example as `example.parse_example` returns it; numbers are fastest in an array.

        Raises:
            ValueError: if their number is not height * width * channels, or a value is not from 0 to 255.
        """
        values = example.get(self._image, ())
        is_bytes = len(values) > 0 and isinstance(values[0], bytes)
        data = values[0] if is_bytes else to_bytes(values)
        found = [example.get(key, ()) for key in self._shape]
        height, width, channels = (each[0] if len(each) == 1 else 0 for each in found)
        if min(height, width) < 1 or not 1 <= channels <= MAX_CHANNELS or len(data) != height * width * channels:
            raise ValueError(
                f"the image is {len(data):,} values, the example says {height} x {width} pixels of {channels} channels"
            )
        return Pixels(data, height, width, channels)


def to_bytes(values: Sequence[Any]) -> bytes:
    """Returns numbers from 0 to 255 as bytes.

    Raises:
        ValueError: if a number is outside of the range.
    """
    import numpy as np  # imported here: imagebeam without extras has no NumPy, and pixels in bytes need none

    numbers = np.asarray(values, None if len(values) else np.uint8)
    is_pixel = (numbers >= 0) & (numbers <= 255)  # false for NaN
    if not is_pixel.all():
        raise ValueError(f"a pixel is {numbers[~is_pixel][0]}, expected 0 to 255")
    return numbers.astype(np.uint8).tobytes()
