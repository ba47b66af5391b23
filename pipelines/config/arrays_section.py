"""The section `source.arrays` of a config."""

from __future__ import annotations

from typing import Annotated, Literal

import pydantic

from imagebeam.pipelines.config.field_types import STRICT, Count, NotBool

Layout = Literal["NHWC", "NCHW", "HWCN", "NWHC", "NCWH", "NHW", "HWN", "NWH"]


class ArraysConfig(pydantic.BaseModel):
    """Images and labels in arrays: CIFAR's batches, NumPy's .npy and .npz, HDF5, MATLAB's .mat; pixels in CSV."""

    model_config = STRICT

    images: dict[str, str] = {}
    """Arrays with images, by split: `FILE#ARRAY`, with a file or glob below `source.uri`; `ARRAY` alone if `source.uri`
    is a file, `FILE` alone if it holds one array or is a CSV file. By default arrays and splits are found by their
    usual names, such as `x_train`, `test_images`, `data`."""
    labels: dict[str, str] = {}
    """Arrays with labels, by split; written as `images`. One number or text for each image, or one-hot rows."""
    layout: Layout | None = None
    """Names of the axes of the arrays with images: N images, H height, W width, C channels. By default NHWC or NHW, or
    NCHW if only that fits; in .mat files HWCN or HWN."""
    shape: tuple[Count, Count, Annotated[int, pydantic.Field(ge=1, le=4), NotBool]] | None = None
    """Height, width and channels of images whose pixels are one axis of the array, such as [28, 28, 1]. By default they
    are square and gray."""
    classes: tuple[str, ...] | dict[int, str] = ()
    """Names of the classes in the order of their numbers, from 0; or the name of each number, in the order of their
    ids, such as {10: "0", 1: "1"}. By default those that the files name; without any, a class that is a number has the
    number as its id."""
