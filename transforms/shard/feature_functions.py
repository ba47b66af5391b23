"""Features that functions of the user compute from batches of images: `features.functions`."""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from imagebeam import example, features
from imagebeam.transforms import elements, user_code
from imagebeam.transforms.images import checked_image, image_formats, image_functions, pillow_decoder, pixels
from imagebeam.transforms.shard import read_images, writer_processes

if TYPE_CHECKING:
    import numpy as np
    import PIL.Image

_MAX_BYTES = 256 << 20  # pixels of images that wait for their batch
_DTYPES = {features.FLOAT: "f", features.INT64: "iu"}  # NumPy's kinds of dtypes whose values are stored


@dataclasses.dataclass(frozen=True)
class FeatureFunction:
    """A function of the user that computes one feature of each image."""

    feature: features.Feature
    code: user_code.UserCode
    batch: int  # images of a call, at most

    def compute(
        self, images: Sequence[np.ndarray], references: Sequence[user_code.Reference], max_seconds: float | None = None
    ) -> list[example.EncodedValues | checked_image.BadImageError]:
        """Returns the feature of each image as it is stored, or why there is none.

        A batch for which the function fails is computed image by image, so that only those are rejected that it fails
        for.

        Args:
            images: pixels, uint8 [height, width, channels].
            references: what is known of the images.
            max_seconds: time for each image; None where a `Watch` limits it.
        """
        seconds = None if max_seconds is None else max_seconds * len(images)
        try:
            # Copies: a function may write into its images, and others, or this one once more, get them as they are.
            found = image_functions.call(
                self.code, [image.copy() for image in images], list(references), max_seconds=seconds
            )
            return self._encode(found, len(images))
        except checked_image.BadImageError as e:
            if len(images) == 1:
                return [e]
        return [
            one
            for image, reference in zip(images, references, strict=True)
            for one in self.compute([image], [reference], max_seconds)
        ]

    def _encode(self, found: Any, count: int) -> list[example.EncodedValues | checked_image.BadImageError]:
        """Returns what a function returned for a batch, as it is stored.

        Raises:
            BadImageError: if it is not one array of the feature's type and shape for each image.
        """
        kind = self.feature.kind
        # Not a set or a mapping, whose order is not that of the images.
        num_found = len(found) if isinstance(found, Sequence) or hasattr(found, "__array__") else -1
        if num_found != count or isinstance(found, str):
            number = "" if num_found < 0 else f", {num_found} values"
            raise self._refuse(f"returned {user_code.describe_value(found)}{number}", count)
        if _repeats_an_array(found):
            raise self._refuse("returned one array for several images", count)
        encoded: list[example.EncodedValues | checked_image.BadImageError] = []
        for each in found:
            values = self._values_of(each)
            try:
                packed = None if values is None else example.encode_values(kind, values)
            except OverflowError:  # a float of more than 32 bits
                packed = None
            if packed is None:
                raise self._refuse(f"returned {user_code.describe_value(each)} for an image", count)
            encoded.append(example.EncodedValues(packed))
        return encoded

    def _values_of(self, found: Any) -> list[Any] | None:
        """Returns the values that a function returned for one image; None if they have another type or shape."""
        import numpy as np

        kind, shape = self.feature.kind, self.feature.shape or ()
        if kind == features.BYTES and not shape:
            values = [found]
        else:
            try:
                array = np.asarray(found)
            except ValueError:  # lists of several lengths
                return None
            if array.shape != shape or (kind != features.BYTES and array.dtype.kind not in _DTYPES[kind]):
                return None
            values = array.ravel().tolist()
        if kind == features.BYTES:
            values = [one.encode() if isinstance(one, str) else one for one in values]
        return values if all(features.check_value(kind, one) for one in values) else None

    def _refuse(self, found: str, count: int) -> checked_image.BadImageError:
        wanted = f"{self.feature.kind} {list(self.feature.shape or ())}"
        detail = f"{self.code.setting} {self.code.path!r} {found}, expected {wanted} for each of {count} images"
        return checked_image.BadImageError(elements.Reason.FUNCTION, detail)


def _repeats_an_array(found: Sequence[Any]) -> bool:
    """Returns whether two values are one array or list: filled for each image it holds the values of the last one.

    Such a batch is computed image by image, which is right for a constant too.
    """
    import numpy as np

    places = [
        each.ctypes.data if isinstance(each, np.ndarray) else id(each)
        for each in (found if isinstance(found, list) else [])
        if isinstance(each, (np.ndarray, list)) or (hasattr(each, "__array__") and not np.isscalar(each))
    ]
    return len(set(places)) < len(places)


# A feature that was computed before, as it is stored; or reason and detail of the reject, or None if it was lost.
Inferred: TypeAlias = "bytes | tuple[str, str] | None"
Found = tuple[elements.ImageRef, "checked_image.Image | elements.Reject | elements.Measures"]


@dataclasses.dataclass(frozen=True)
class FeatureFunctions:
    """All functions of a dataset that compute features."""

    functions: tuple[FeatureFunction, ...] = ()  # that shard writers call
    columns: tuple[str, ...] = ()  # sources of the values in ImageRef.columns
    inferred: tuple[FeatureFunction, ...] = ()  # whose features are computed before: see columns.infer_features
    max_seconds: float = user_code.MAX_SECONDS  # for each image of a batch

    @property
    def is_on(self) -> bool:
        """Whether there is a function."""
        return bool(self.functions or self.inferred)

    def take_inferred(
        self, refs: Iterable[elements.ImageRef], inferred: dict[str, Sequence[Inferred]]
    ) -> Iterator[elements.ImageRef]:
        """Yields references without the features that `infer_features` has added to their columns.

        Args:
            refs: the images of a shard.
            inferred: takes these features by key.
        """
        count = len(self.inferred)
        for ref in refs:
            inferred[ref.key] = ref.columns[len(ref.columns) - count :]
            yield ref._replace(columns=ref.columns[: len(ref.columns) - count])

    def add_to(
        self, images: Iterable[Found], inferred: Mapping[str, Sequence[Inferred]] = types.MappingProxyType({})
    ) -> Iterator[Found]:
        """Yields images with the features that the functions compute, in the same order.

        A batch is as many images as the largest `batch`, or fewer if their pixels are more than 256 MB. It depends on
        the images of the shard alone, so the same shard has the same batches on every runner.
        """
        for function in self.functions:
            function.code.start()  # may take longer than an image may
        most = max((each.batch for each in self.functions), default=0)
        with read_images.Watch(self.max_seconds) as watch:
            waiting: list[_Waiting] = []
            num_waiting = num_bytes = 0
            number = -1  # of the image in the shard
            for ref, image in images:
                number += ref.frame == 0
                one = _Waiting(number, ref, image)
                if isinstance(image, checked_image.Image) and self.functions:
                    one.decode()
                if one.pixels is not None:
                    num_waiting, num_bytes = num_waiting + 1, num_bytes + one.pixels.nbytes
                waiting.append(one)
                if num_waiting >= most or num_bytes >= _MAX_BYTES or not num_waiting:
                    yield from self._finish(waiting, watch, inferred)
                    waiting, num_waiting, num_bytes = [], 0, 0
            yield from self._finish(waiting, watch, inferred)

    def _finish(
        self, waiting: Sequence[_Waiting], watch: read_images.Watch, inferred: Mapping[str, Sequence[Inferred]]
    ) -> Iterator[Found]:
        """Yields images that waited, with their features."""
        for function in self.functions:
            there = [one for one in waiting if one.pixels is not None]
            for start in range(0, len(there), function.batch):
                batch = there[start : start + function.batch]
                for one, value in zip(batch, self._compute(function, batch, watch), strict=True):
                    one.add(value)
        for one in waiting:
            if isinstance(one.image, checked_image.Image):
                one.take_inferred(inferred.get(one.ref.key, ()))
            yield one.ref, one.image

    def _compute(
        self, function: FeatureFunction, batch: Sequence[_Waiting], watch: read_images.Watch
    ) -> list[example.EncodedValues | checked_image.BadImageError]:
        """Returns a feature of the images of a batch."""
        images, references = [], []
        for one in batch:
            assert one.pixels is not None
            images.append(one.pixels)
            references.append(user_code.reference_of(one.ref, self.columns))

        def compute_alone(place: int) -> example.EncodedValues | checked_image.BadImageError:
            compute = functools.partial(function.compute, [images[place]], [references[place]])
            try:
                return watch.run(batch[place].number, compute)[0]
            except checked_image.BadImageError as e:
                return e

        if writer_processes.notes_each():  # a process died: an image that kills the next one is to be known
            for place, one in enumerate(batch):
                writer_processes.note_progress(one.number)
                compute_alone(place)
            writer_processes.note_progress(-1)
        try:
            # If this takes too long, the process ends without blame for one of the images.
            return watch.run(-1, functools.partial(function.compute, images, references), len(batch))
        except checked_image.BadImageError:
            return list(map(compute_alone, range(len(batch))))


def show(image: checked_image.Image) -> PIL.Image.Image:
    """Returns the picture of an image as it is stored.

    Raises:
        BadImageError: if it cannot be decoded.
    """
    if image.format == image_formats.RAW:
        return pixels.from_bytes(image.data, (image.height, image.width, image.channels))
    return pixels.to_eight_bits(pixels.with_alpha(pillow_decoder.decode_any(image.data, image.format)))


def decode(image: checked_image.Image) -> np.ndarray:
    """Returns the pixels of an image as it is stored, uint8 [height, width, channels].

    Raises:
        BadImageError: if it cannot be decoded.
    """
    import numpy as np

    values = np.array(show(image))
    return values if values.ndim == 3 else values[:, :, np.newaxis]


class _Waiting:
    """An image that waits for its batch, or what came instead of one."""

    def __init__(self, number: int, ref: elements.ImageRef, image: Any):
        self.number, self.ref, self.image = number, ref, image
        self.pixels: np.ndarray | None = None

    def decode(self) -> None:
        """Decodes the image; makes it a reject if that is not possible."""
        try:
            self.pixels = decode(self.image)
        except checked_image.BadImageError as e:
            self.reject(e)

    def take_inferred(self, values: Sequence[Inferred]) -> None:
        """Adds the features that were computed before; makes the image a reject if one of them could not be."""
        if None in values:
            self.decode()  # which says what is wrong with it
        for value in values:
            if not isinstance(self.image, checked_image.Image):
                return
            reason, detail = value if isinstance(value, tuple) else (elements.Reason.FUNCTION, "RunInference lost it")
            is_there = isinstance(value, bytes)
            error = checked_image.BadImageError(elements.Reason(reason), detail)
            self.add(example.EncodedValues(value) if is_there else error)  # type: ignore[arg-type]

    def add(self, value: example.EncodedValues | checked_image.BadImageError) -> None:
        """Adds the feature of the next function."""
        if isinstance(value, checked_image.BadImageError):
            self.reject(value)
        else:
            self.image = self.image._replace(computed=(*self.image.computed, value))

    def reject(self, error: checked_image.BadImageError) -> None:
        """Makes the image a reject."""
        self.image = elements.Reject(self.ref.key, self.ref.uri, "check", error.reason, error.detail)
        self.pixels = None


NONE = FeatureFunctions()
