"""The format `arrays`: CIFAR's batches, NumPy's .npy and .npz, and others; labels are other arrays."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal

from imagebeam import errors, storage
from imagebeam.transforms.formats import base_format
from imagebeam.transforms.formats.arrays import array_source
from imagebeam.transforms.packed import broken_content, unpacked_content
from imagebeam.transforms.sources import image_source


@dataclasses.dataclass(frozen=True)
class Arrays(base_format.Format):
    """Images and labels in arrays: CIFAR's batches, NumPy's .npy and .npz, HDF5, MATLAB's .mat; pixels in CSV."""

    ABOUT: ClassVar[str] = "images that are rows of arrays, or of pixels in CSV"
    PRESETS: ClassVar[tuple[str, ...]] = (
        "cifar10",
        "cifar100",
        "emnist",
        "fer2013",
        "hdf5",
        "mnist_csv",
        "npz",
        "svhn",
    )

    images: dict[str, str] = dataclasses.field(default_factory=dict)
    """Arrays with images, by split: `FILE#ARRAY`, with a file or glob below `source.uri`; `ARRAY` alone if `source.uri`
    is a file, `FILE` alone if it holds one array or is a CSV file. By default arrays and splits are found by their
    usual names, such as `x_train`, `test_images`, `data`."""
    labels: dict[str, str] = dataclasses.field(default_factory=dict)
    """Arrays with labels, by split; written as `images`. One number or text for each image, or one-hot rows."""
    layout: Literal["NHWC", "NCHW", "HWCN", "NWHC", "NCWH", "NHW", "HWN", "NWH"] | None = None
    """Names of the axes of the arrays with images: N images, H height, W width, C channels. By default NHWC or NHW, or
    NCHW if only that fits; in .mat files HWCN or HWN."""
    shape: tuple[base_format.Count, base_format.Count, base_format.Channels] | None = None
    """Height, width and channels of images whose pixels are one axis of the array, such as [28, 28, 1]. By default they
    are square and gray."""
    classes: tuple[str, ...] | dict[int, str] = ()
    """Names of the classes in the order of their numbers, from 0; or the name of each number, in the order of their
    ids, such as {10: "0", 1: "1"}. By default those that the files name; without any, a class that is a number has the
    number as its id."""

    def gives(self) -> base_format.Gives:
        return base_format.Gives(columns=True, splits=True)

    def open(self, request: base_format.Request) -> image_source.ImageSource:
        from imagebeam.transforms.formats.arrays import find_arrays  # late: NumPy

        if request.label_by not in ("column", "none"):
            raise errors.ConfigError(
                f"label.by is {request.label_by!r}, and source.by: arrays has its labels in arrays: set label.by: "
                f"column and label.column: {array_source.LABEL}, or label.by: none"
            )
        named = self.classes if isinstance(self.classes, dict) else dict(enumerate(self.classes))
        classes = tuple((str(number), name) for number, name in named.items())
        wanted = array_source.Wanted(self.images, self.labels, self.layout, self.shape, classes)
        return find_arrays.find(wanted, request)

    @classmethod
    def advise_on_file(cls, uri: str) -> str:
        if uri.endswith(tuple(end for end in unpacked_content.ARRAYS if not end.startswith("/"))):
            return (
                "for images that are rows of arrays set source.by: arrays, as the presets npz, hdf5, svhn and emnist do"
            )
        if not uri.lower().endswith(unpacked_content.CSV):
            return ""
        from imagebeam.transforms.formats.arrays import pixel_csv  # late: NumPy

        try:
            if pixel_csv.look_into(uri, storage.storage_of(uri).stat(uri).version) is None:
                return ""
        except (OSError, broken_content.BrokenContentError):
            return ""
        return "for pixels in CSV set source.by: arrays, as the presets mnist_csv and fer2013 do"
