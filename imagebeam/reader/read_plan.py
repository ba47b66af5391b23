"""The plan of a reader: which records one process reads in which order, and what is known of their examples."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from imagebeam import catalog as catalog_lib
from imagebeam import errors, features
from imagebeam.reader import (
    bare_pixels,
    batch_schedule,
    extra_images,
    image_lists,
    object_options,
    option_values,
    record_selection,
    shard_reader,
)
from imagebeam.reader import options as options_lib

_LOGGER = logging.getLogger("imagebeam.dataset")
IMAGE, LABEL, MASK, WEIGHT = "image", "label", "mask", "weight"
METADATA = ("epoch", "record", "seed", "copy")
_EXACT_DTYPES = ("uint8", "uint16")  # which hold only what is stored
_BOXES = ("image/object/bbox/", "image/object/class/label")
_PLACES = (
    *("image/object/bbox/", "image/object/keypoint/x", "image/object/keypoint/y", "image/object/mask"),
    extra_images.SEGMENTATION,
)


@dataclasses.dataclass(frozen=True, eq=False)
class ReadPlan:
    """The records that a reader reads, and what it must know of them.

    Attributes:
        fetcher: reads the records of the split.
        schedule: the positions that this process reads, and the record at each.
        by_source: the features of every example, by their sources.
        extra: the features that the user asked for besides image and label.
        images: the extra images that the user asked for.
        objects: the features of objects that the user asked for, by their sources.
        keypoints: names of the keypoints of each object.
        formats: formats of the images in the split; empty if they are unknown.
        is_raw: whether the images are stored as bare pixels.
        form: type and channels of the images before they are cast.
        mean_record_bytes: mean length of a record.
        label_base: id of the first class in the records.
        num_classes: length of the label vector if an image may have several classes, ids below the first included.
        weight: the feature that is the weight of each example, if the user named one.
        mean_and_std: mean and standard deviation to normalise pixels from 0 to 255 with; None leaves them as they are.
    """

    fetcher: shard_reader.Fetcher
    schedule: batch_schedule.BatchSchedule
    by_source: Mapping[str, features.Feature]
    extra: tuple[features.Feature, ...]
    images: tuple[extra_images.ExtraImage, ...]
    objects: Mapping[str, features.Feature]
    keypoints: tuple[str, ...]
    formats: frozenset[str]
    is_raw: bool
    form: bare_pixels.PixelForm
    mean_record_bytes: int
    label_base: int
    num_classes: int
    weight: features.Feature | None
    mean_and_std: option_values.MeanAndStd | None

    @functools.cached_property
    def has_lists_of_images(self) -> bool:
        """Whether an example has any number of images."""
        return features.is_list_of_images(self.by_source[features.ENCODED])

    @functools.cached_property
    def label(self) -> features.Feature | None:
        """The label, if each example has exactly one."""
        found = self.by_source.get(features.LABEL)
        return None if found is None or found.many else found

    @functools.cached_property
    def columns(self) -> Mapping[str, features.Feature]:
        """The requested features with one value in each example, by their names inside the reader.

        "label" comes first, if there is one. The others are "features/KEY".
        """
        wanted = (*self.extra, *([] if self.weight is None else [self.weight]))
        others = {f"features/{feature.key}": feature for feature in wanted if not feature.many}
        return others if self.label is None else {"label": self.label, **others}

    @functools.cached_property
    def many(self) -> Mapping[str, features.Feature]:
        """The requested features with several values in each example, and the label if it is one, named likewise."""
        label = self.by_source.get(features.LABEL)
        labels = {LABEL: label} if label is not None and label.many else {}
        return labels | {f"features/{feature.key}": feature for feature in self.extra if feature.many}


def make_plan(
    directory: str,
    catalog: catalog_lib.Catalog,
    statistics: Mapping[str, Any],
    selected: record_selection.RecordSelection,
    open_reader: Callable[[], shard_reader.Fetcher],
    planned: batch_schedule.BatchSchedule,
    asked: options_lib.ReadOptions,
) -> ReadPlan:
    """Returns the plan of one process for reading a selection, without mean and standard deviation of its pixels.

    Args:
        directory: address of the dataset, for errors.
        catalog: its catalog.
        statistics: what the writer counted, by split; {} if the statistics are lost.
        selected: the records to read.
        open_reader: opens the reader of the records; called once all options are checked.
        planned: schedule of this process.
        asked: options of the reader.

    Raises:
        ConfigError: if the options do not fit the dataset.
    """
    by_source = {feature.source: feature for feature in catalog.features}
    formats = bare_pixels.formats_in(statistics, selected.splits)
    is_raw = bare_pixels.is_raw(catalog, formats)
    _check_options(directory, catalog, by_source, asked)
    if is_raw:
        bare_pixels.check_shape_is_stored(catalog)
    own = own_names(catalog, asked.pad, asked.weights is not None)
    own |= dict.fromkeys(METADATA, "the metadata of an example") if asked.metadata else {}
    if asked.max_images is not None:
        own[image_lists.COUNT] = "the number of images"
    form = _form(directory, catalog, asked)
    images = tuple(extra_images.choose_image(catalog, name, own, form) for name in asked.images)
    own |= {name: "an extra image" for name in asked.images}
    if asked.segmentation is not None:
        images += (extra_images.choose_segmentation(catalog, asked.segmentation, own),)
        own["segmentation"] = "the mask of segmentation"
    if asked.objects is not None:
        own |= {name: "what objects gives" for name in (*object_options.NAMES, *asked.objects.features)}
    if asked.patches is not None:
        own.pop(IMAGE)
        own |= dict.fromkeys(options_lib.OF_PATCHES, "the patches of the image")
    if asked.views is not None:
        own.pop(IMAGE)
        for name in own.keys() & asked.views.keys():
            raise errors.ConfigError(
                "options-conflict", f"a view is named {name!r}, as {own[name]} in a batch: give it another name"
            )
        own |= {name: "views of the image" for name in asked.views}
    extra = tuple(choose_features(catalog, asked.features, own, asked.list_size))
    for picture in asked.pictures():
        _check_places(extra, picture.options)
    return ReadPlan(
        fetcher=open_reader(),
        schedule=planned,
        by_source=by_source,
        extra=extra,
        images=images,
        objects=object_options.choose_stored(catalog, asked.objects),
        keypoints=catalog.keypoints,
        formats=formats,
        is_raw=is_raw,
        form=form,
        mean_record_bytes=selected.mean_record_bytes,
        label_base=catalog.label_base if catalog.label_kind == "class" else asked.label_base,
        num_classes=asked.label_base + len(catalog.labels),
        weight=_weight(catalog, by_source, asked),
        mean_and_std=None,
    )


def lists_among(catalog: catalog_lib.Catalog, keys: Sequence[str]) -> list[str]:
    """Returns the keys whose features may have any number of values."""
    return [feature.key for feature in catalog.features if feature.is_list and feature.key in keys]


def own_names(catalog: catalog_lib.Catalog, pad: bool = False, has_weights: bool = False) -> dict[str, str]:
    """Returns the names that every batch has by itself, each with a description."""
    sources = {feature.source for feature in catalog.features}
    names = {IMAGE: "the picture"} if features.ENCODED in sources else {}
    if features.LABEL in sources:
        names[LABEL] = "the label"
    if pad:
        names[MASK] = "the mask of pad=True"
    if has_weights:
        names[WEIGHT] = "the weight of an example"
    return names


def choose_features(
    catalog: catalog_lib.Catalog, keys: Sequence[str], own: Mapping[str, str], list_size: int | None = None
) -> list[features.Feature]:
    """Returns the features with these keys, each once, in the order of `keys`.

    Args:
        catalog: catalog of the dataset.
        keys: keys of features, from the user.
        own: names that every batch has by itself, from `own_names`.
        list_size: length of all lists without a shape, which adds the name "KEY/count" for each; None keeps their
            lengths.

    Raises:
        ConfigError: if a feature does not exist, or its key is already a name in the batch.
    """
    by_key = {feature.key: feature for feature in catalog.features}
    taken = dict(own)
    chosen = []
    for key in dict.fromkeys(keys):
        if key not in by_key:
            [nearest] = difflib.get_close_matches(key, by_key, 1) or [""]
            hint = f" (did you mean {nearest!r}?)" if nearest else ""
            raise errors.ConfigError(
                "feature-unknown", f"there is no feature {key!r}; the dataset has {', '.join(by_key)}{hint}"
            )
        chosen.append(by_key[key])
        if list_size is not None and by_key[key].is_list:
            taken[f"{key}/count"] = f"how many values {key!r} has"
    for feature in chosen:
        if feature.key in taken:
            raise errors.ConfigError(
                "feature-name-taken",
                f"feature {feature.key!r} has the name of {taken[feature.key]} in a batch: leave it out of features, "
                f"or convert again with another key for it, features: {{{feature.source}: my_{feature.key}}}",
            )
    return chosen


def _check_options(
    directory: str,
    catalog: catalog_lib.Catalog,
    by_source: Mapping[str, features.Feature],
    asked: options_lib.ReadOptions,
) -> None:
    """Checks the options against the dataset.

    Raises:
        ConfigError: if they do not fit.
    """
    if features.ENCODED not in by_source:
        raise errors.ConfigError(
            "dataset-no-images", f"{directory} was written without images: features drops image/encoded"
        )
    image_lists.check(directory, by_source, asked)
    if asked.supervised and features.LABEL not in by_source:
        boxes = [each.key for each in catalog.features if each.source.startswith(_BOXES)]
        named = f", with the boxes: features={boxes}" if boxes else ""
        raise errors.ConfigError(
            "dataset-no-labels",
            f"{directory} has no labels, which supervised=True needs: leave it out, and take batches by name{named}",
        )
    if asked.list_size is not None and not lists_among(catalog, asked.features):
        known = [feature.key for feature in catalog.features]
        raise errors.ConfigError(
            "options-conflict",
            f"list_size is {asked.list_size}, and features asks for no list; the dataset has "
            f"{', '.join(lists_among(catalog, known)) or 'none'}",
        )
    highest = asked.label_base + len(catalog.labels) - 1
    if asked.num_classes is not None and catalog.labels and highest >= asked.num_classes:
        raise errors.ConfigError(
            "labels-beyond-model",
            f"labels run from {asked.label_base} to {highest}, and a model of {asked.num_classes} classes takes "
            f"0 to {asked.num_classes - 1}: give label_base=0, or num_classes={highest + 1}",
        )


def _form(directory: str, catalog: catalog_lib.Catalog, asked: options_lib.ReadOptions) -> bare_pixels.PixelForm:
    """Returns the form of the images.

    Raises:
        ConfigError: if a batch cannot hold them, or the options do not fit it.
    """
    form = bare_pixels.form_of(catalog)
    if not form.channels:
        raise errors.ConfigError(
            "pixels-channels-differ",
            f"the images of {directory} have different numbers of bands, which no batch can hold: read them with "
            "as_grain, or convert again with image.bands",
        )
    if asked.dtype != form.dtype and asked.dtype in _EXACT_DTYPES:
        raise errors.ConfigError(
            "pixels-other-dtype",
            f"dtype is {asked.dtype!r}, and {directory} holds pixels of {form.dtype}, which are not scaled: give "
            f"dtype={form.dtype!r}, or 'float32', 'bfloat16' or 'float16'",
        )
    if asked.normalize is not None and not isinstance(asked.normalize, str):
        given = {*map(len, asked.normalize)} - {1, form.channels}
    else:
        given = {3} - {form.channels} if asked.normalize == "imagenet" else set()
    if given:
        raise errors.ConfigError(
            "pixels-other-channels",
            f"normalize has {min(given)} channels, and the images of {directory} have {form.channels}: give one number "
            "for all, or one for each",
        )
    return form


def _weight(
    catalog: catalog_lib.Catalog, by_source: Mapping[str, features.Feature], asked: options_lib.ReadOptions
) -> features.Feature | None:
    """Returns the feature that is the weight of each example; None if weights are given by class, or not at all.

    Raises:
        ConfigError: if the dataset has no such weights.
    """
    if isinstance(asked.weights, str):
        [feature] = choose_features(catalog, [asked.weights], {})
        if feature.many or feature.kind == features.BYTES:
            raise errors.ConfigError(
                "weights-mismatch",
                f"weights={asked.weights!r} is a {feature.describe()}; name a feature with one number",
            )
        return feature
    if asked.weights is not None:
        label = by_source.get(features.LABEL)
        if label is None or label.many or catalog.label_kind != "class":
            raise errors.ConfigError(
                "weights-mismatch",
                "weights by class need exactly one class for each image, and the dataset has none: "
                "give the key of a feature with the weights",
            )
        ids = range(asked.label_base, asked.label_base + len(catalog.labels))
        if set(ids) != set(asked.weights):
            missing = [f"{each} ({catalog.labels[each - ids.start]!r})" for each in ids if each not in asked.weights]
            unknown = sorted(set(asked.weights) - set(ids))
            found = f"lacks {', '.join(missing[:5])}" if missing else f"has {unknown[:5]}, which are no classes"
            raise errors.ConfigError(
                "weights-mismatch", f"weights {found}: give one for each id from {ids.start} to {ids.stop - 1}"
            )
    return None


def _check_places(extra: Sequence[features.Feature], asked: options_lib.ReadOptions) -> None:
    """Checks that boxes, keypoints and masks fit the images. Logs a warning if extra images are cut differently.

    Raises:
        ConfigError: if they do not, because only the image is cropped or mirrored.
    """
    if asked.crop in ("squash", None) and not asked.flips:
        return
    moves = f"crop={asked.crop!r}, flip={asked.flips} move the pixels of the image only"
    misplaced = {each.key: each.source for each in extra if each.source.startswith(_PLACES)}
    if misplaced:
        is_mask = {source == extra_images.SEGMENTATION for source in misplaced.values()}
        given = {True: "segmentation=imagebeam.Segmentation()", False: "objects=imagebeam.Objects()"}
        raise errors.ConfigError(
            "features-misplaced",
            f"features asks for {', '.join(misplaced)}, which fit the whole image, and {moves}: give "
            f"{' and '.join(given[each] for each in sorted(is_mask))} instead, which moves them alike; or "
            f'crop="squash", flip=False',
        )
    parts = {each.key: features.extra_image_part(each.source) for each in extra}
    names = {key: part[0] for key, part in parts.items() if part is not None and part[1] == "encoded"}
    if names:
        _LOGGER.warning("%s: %s; images=%s decodes them alike", ", ".join(names), moves, [*names.values()])
