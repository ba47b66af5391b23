"""Options of buckets and patches that do not fit each other, or others."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

import imagebeam
from tests import case_tables, error_texts

SIZES = ((8, 8), (8, 16))
IN_BUCKETS: dict[str, Any] = {"buckets": SIZES}
IN_PATCHES: dict[str, Any] = {"patches": 8}
PADDED: dict[str, Any] = {"max_enlarge": 2, "too_small": "pad"}
CONFLICTS: dict[str, tuple[int | None, dict[str, Any]]] = {
    "max_pixels without buckets": (2, {"max_pixels": 100}),
    "batch_multiple without buckets": (2, {"batch_multiple": 2}),
    "max_enlarge alone": (2, {"max_enlarge": 2}),
    "no batch size": (None, IN_BUCKETS),
    "multiple of a batch size": (2, {**IN_BUCKETS, "batch_multiple": 2}),
    "multiple of other processes": (None, {**IN_BUCKETS, "max_pixels": 999, "batch_multiple": 3, "process_count": 2}),
    "too few pixels": (None, {**IN_BUCKETS, "max_pixels": 255, "batch_multiple": 2}),
    "too many images": (None, {**IN_BUCKETS, "max_pixels": 64 * ((1 << 24) + 1)}),
    "two sizes of a batch": (2, {**IN_BUCKETS, "max_pixels": 999}),
    "stream": (2, {**IN_BUCKETS, "shuffle": "stream"}),
    "in order": (2, {**IN_BUCKETS, "shuffle": None}),
    "no crop": (2, {**IN_BUCKETS, "crop": None}),
    "crop pad": (2, {**IN_BUCKETS, "crop": "pad"}),
    "partial batches": (2, {**IN_BUCKETS, "drop_remainder": False}),
    "unequal iterations": (2, {**IN_BUCKETS, "next_epoch_each_iteration": True, "num_epochs": 1}),
    "image_size": (2, {**IN_BUCKETS, "image_size": 8}),
    "repeats": (2, {**IN_BUCKETS, "repeats": 2}),
    "views": (2, {**IN_BUCKETS, "views": {"a": (1, 8)}}),
    "lists of images": (2, {**IN_BUCKETS, "max_images": 2}),
    "map_workers": (2, {**IN_BUCKETS, "map": max, "map_workers": 2}),
    "max_patches without patches": (2, {"max_patches": 256}),
    "max_patches in buckets": (2, {**IN_BUCKETS, "max_patches": 256}),
    "patches of a size": (2, {**IN_PATCHES, "image_size": 8}),
    "patches of a crop": (2, {**IN_PATCHES, "crop": "center"}),
    "patches in buckets": (2, {**IN_PATCHES, **IN_BUCKETS}),
    "patches of views": (2, {**IN_PATCHES, "views": {"a": (1, 8)}}),
    "patches and images": (2, {**IN_PATCHES, "images": ["target"]}),
    "patches and objects": (2, {**IN_PATCHES, "objects": imagebeam.Objects()}),
    "patches and segmentation": (2, {**IN_PATCHES, "segmentation": imagebeam.Segmentation()}),
    "patches of lists": (2, {**IN_PATCHES, "max_images": 2}),
    "patches in pairs": (2, {**IN_PATCHES, "supervised": True}),
    "patches with a border": (2, {**IN_PATCHES, "max_enlarge": 2, "too_small": "pad"}),
    "small images squashed": (2, {**IN_BUCKETS, **PADDED, "crop": "squash"}),
    "small images not resized": (2, {**PADDED, "crop": "pad"}),
    "small images as they are": (None, {**PADDED, "crop": None, "image_size": None}),
    "small images and others": (2, {**IN_BUCKETS, **PADDED, "images": ["segmentation"]}),
    "border of nothing": (2, {**IN_BUCKETS, "too_small": "pad"}),
    "changed patches": (2, {**IN_PATCHES, "erasing": 0.5}),
}
BAD_VALUES: list[dict[str, Any]] = [
    {"buckets": []},
    {"buckets": "wide"},
    {"buckets": [(8, 8), 8]},
    {"buckets": [(8, 0)]},
    {"buckets": [None]},
    {"buckets": [(True, 8)]},
    {"buckets": [(1, 32_768)]},
    {"buckets": [(each // 256 + 1, each % 256 + 1) for each in range(32_768)]},
    {**IN_BUCKETS, "max_pixels": 0},
    {**IN_BUCKETS, "max_enlarge": 0},
    {**IN_BUCKETS, "max_enlarge": 2, "too_small": "keep"},
    {"patches": 0},
    {"patches": 32_768},
    {**IN_PATCHES, "max_patches": 0},
]


@case_tables.each_case("batch_size, options", CONFLICTS)
def test_options_that_do_not_fit_are_refused(batch_size: int | None, options: dict[str, Any]) -> None:
    with error_texts.raises("options-conflict"):
        imagebeam.ReadOptions.of(batch_size, options, True)


def test_largest_sides_and_batches_are_taken() -> None:
    asked = imagebeam.ReadOptions.of(None, {"buckets": [(1, 32_767), 64], "max_pixels": 4096 << 24}, True)
    assert asked.bucket_batch_sizes[1] == asked.batch_size == 1 << 24


def test_number_that_no_machine_could_hold_is_refused_by_every_option() -> None:
    with_any = {"seed", "max_enlarge"}
    for field in dataclasses.fields(imagebeam.ReadOptions):
        if field.name not in with_any:
            with case_tables.named(field.name), pytest.raises(imagebeam.ConfigError) as caught:
                imagebeam.ReadOptions(**{field.name: 10**30})
            assert caught.value.code == "option-bad-value", field.name


@case_tables.each_case("options", BAD_VALUES)
def test_wrong_values_are_refused(options: dict[str, Any]) -> None:
    with error_texts.raises("option-bad-value"):
        imagebeam.ReadOptions.of(2, options, True)
