"""Images that are stored as bare pixels, not as files: rows from top to bottom, pixels from the left, channels."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from imagebeam import catalog as catalog_lib
from imagebeam import errors, features

if TYPE_CHECKING:
    import numpy as np

FORMAT = "raw"
SHAPE = ("image/height", "image/width", "image/channels")
MAX_CHANNELS = 4


class PixelForm(NamedTuple):
    """The form of the images in a batch: RGB of 8 bits, or all bands of another type, as they are stored."""

    dtype: str = "uint8"
    channels: int = 3  # 0: as many as each image has
    is_usual: bool = True

    @property
    def value_bytes(self) -> int:
        """Bytes of a value of bare pixels."""
        return {"uint8": 1, "uint16": 2, "float32": 4}[self.dtype]

    def fits(self, num_bytes: int, height: int, width: int, channels: int) -> bool:
        """Returns whether bare pixels of so many bytes are an image of this form with these sides and channels."""
        is_known = channels <= MAX_CHANNELS if self.is_usual else self.channels in (channels, 0)
        is_whole = num_bytes == height * width * channels * self.value_bytes
        return min(height, width, channels) >= 1 and is_known and is_whole


USUAL = PixelForm()


def form_of(catalog: catalog_lib.Catalog) -> PixelForm:
    """Returns the form of the images of a dataset."""
    if not catalog.pixels:
        return USUAL
    return PixelForm(catalog.pixels["dtype"], catalog.pixels["shape"][2] or 0, is_usual=False)


def forms_of_extra_images(catalog: catalog_lib.Catalog) -> dict[str, PixelForm]:
    """Returns by its name the form of each extra image whose pixels are no colors of 8 bits."""
    return {
        name: PixelForm(each["dtype"], each["channels"], is_usual=False) for name, each in catalog.extra_pixels.items()
    }


def describe(dtype: str, statistics: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns `Catalog.pixels` for stored pixels of a type that is not the usual one.

    Args:
        dtype: of the stored pixels.
        statistics: counts of the writer, of each split.
    """
    splits = [each for each in statistics if each.get("formats")]
    sides = [{each[side][end] for each in splits for end in ("min", "max")} for side in ("height", "width")]
    channels = {bands_of(name) for each in splits for name in each["colorspaces"]}
    return {"dtype": dtype, "shape": [next(iter(found)) if len(found) == 1 else None for found in (*sides, channels)]}


_COLORSPACES = {1: "GRAY", 3: "RGB"}
_BANDS = "BANDS_"


def colorspace_of(bands: int) -> str:
    """Returns what `image/colorspace` says of an image of bands: GRAY of one, RGB of three, else BANDS_n."""
    return _COLORSPACES.get(bands, f"{_BANDS}{bands}")


def bands_of(colorspace: str) -> int:
    """Returns the number of bands for a value of `colorspace_of`."""
    named = {name: bands for bands, name in _COLORSPACES.items()}
    return named[colorspace] if colorspace in named else int(colorspace.removeprefix(_BANDS))


class Pixels(NamedTuple):
    """The pixels of one image."""

    data: bytes  # values of the dataset's type, little-endian: height * width * channels
    height: int
    width: int
    channels: int  # 1 gray, 2 gray and alpha, 3 RGB, 4 RGB and alpha; or the bands of another type than the usual

    def to_array(self, form: PixelForm) -> np.ndarray:
        """Returns them as they are stored, [height, width, channels] of the type in `form`, read-only."""
        import numpy as np  # imported here: imagebeam without extras has no NumPy

        values: np.ndarray = np.frombuffer(self.data, np.dtype(form.dtype).newbyteorder("<"))
        return values.reshape(self.height, self.width, self.channels)


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


def formats_in(statistics: Mapping[str, Any], splits: Sequence[str] | None = None) -> frozenset[str]:
    """Returns the formats of the images in some splits, or in all, from the statistics of a dataset.

    Empty if those of one of the splits are not known.
    """
    counted = [statistics.get(name, {}).get("formats", {}) for name in (statistics if splits is None else splits)]
    return frozenset(itertools.chain(*counted)) if splits is None or all(counted) else frozenset()


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
        self._form = form_of(catalog)
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
        if not self._form.fits(len(data), height, width, channels):
            num_values = len(data) // self._form.value_bytes
            raise ValueError(
                f"the image is {num_values:,} values, the example says {height} x {width} pixels of {channels} channels"
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
