"""Decides what the features of another tool's records mean: which is the image, which the label, which the size."""

from __future__ import annotations

import base64
import binascii
import collections
import contextlib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from imagebeam import errors, example, features, plural
from imagebeam.transforms import kept_features
from imagebeam.transforms.images import image_formats
from imagebeam.transforms.indexing import scan_shard

NONE = "none"  # as --label

# Keys in the order in which they are tried.
_IMAGE_KEYS = (features.ENCODED, "image", "image_raw", "encoded", "image_bytes", "jpeg", "jpg", "png", "img", "data")
_LABEL_KEYS = (
    features.LABEL,
    "label",
    "image/label",
    "image/class",
    "class",
    "labels",
    "target",
    "class_id",
    "category",
)
_TEXT_KEYS = (features.TEXT, "image/class/synset", "class_name", "label_name", "class_text", "label/text")
_SIZE_KEYS = {
    "image/height": ("image/height", "height", "image_height", "rows"),
    "image/width": ("image/width", "width", "image_width", "cols"),
    "image/channels": ("image/channels", "image/depth", "channels", "depth", "image_channels"),
}
_BASE64 = re.compile(rb"[A-Za-z0-9+/_-]+={0,2}")
_BASE64_HEAD = 4096  # bytes of a value that are looked at
_NOT_TAKEN = frozenset({features.ENCODED, features.LABEL, features.ENTRY_POINTS, *_SIZE_KEYS})
_MAX_NAMED = 12


class Chosen(NamedTuple):
    """The features of a dataset, and what the user should know of them."""

    features: tuple[features.Feature, ...]
    label_kind: str | None  # as in the catalog: "class", INT64, FLOAT or None
    notes: tuple[str, ...]


def choose_keys(
    sample: Sequence[bytes], image: str | None, label: str | None, where: str, convert: str
) -> scan_shard.Keys:
    """Returns the keys that matter, from some of the records.

    Args:
        sample: serialized Examples, at least one.
        image: key of the image; None to find it.
        label: key of the label; `NONE` for none, and None to find it.
        where: the file of the first of them, for errors.
        convert: the beginning of a command that converts the files instead.

    Raises:
        ConfigError: if there is no image, or none that the reader can read, or it is not certain which feature it is.
    """
    parsed = [*_parse_readable(sample)]
    if not parsed:
        raise errors.ConfigError(
            "index-no-example",
            f"no tf.train.Example is among the first {plural.count(len(sample), 'record')}, from {where} on: they "
            "are damaged, or are messages of another kind",
        )
    known = ", ".join(sorted(parsed[0])) or "none"
    if image is not None and not any(image in values for values in parsed):
        raise errors.ConfigError(
            "index-unknown-feature", f"--image {image!r}: {where} has no such feature; its features are {known}"
        )
    sizes = tuple(
        (source, found)
        for source, keys in _SIZE_KEYS.items()
        if (found := next((key for key in keys if _is_number(parsed, key)), None)) is not None
    )
    image = _find_image(parsed, sizes, where, known, convert) if image is None else image
    value = next(values[image] for values in parsed if image in values)
    if len(value) != 1 or not isinstance(value[0], bytes):
        raise errors.ConfigError(
            "index-feature-of-numbers",
            f"feature {image!r} of {where} holds {len(value):,} numbers, and an image is one value of bytes here: name "
            f"another feature with --image (its features are {known}), or write the records again",
        )
    is_raw = _is_raw(value[0], parsed[0], sizes)
    if not is_raw and image_formats.sniff_format(value[0]) is None and _is_base64(value[0]):
        raise errors.ConfigError("index-feature-base64", _refuse_base64(image, where, sizes, convert))
    key = _find_label(parsed, label, where, known)
    texts = tuple(text for text in _TEXT_KEYS if any(text in values for values in parsed))
    return scan_shard.Keys(image, key, texts if key else (), sizes, is_raw)


def _parse_readable(sample: Sequence[bytes]) -> Iterator[dict[str, list[Any]]]:
    """Yields the features of the records that are Examples; a scan of all records counts the others."""
    for record in sample:
        with contextlib.suppress(ValueError):
            yield example.parse_example(record)


def _find_image(
    parsed: Sequence[Mapping[str, Any]], sizes: Sequence[tuple[str, str]], where: str, known: str, convert: str
) -> str:
    """Returns the key of the image.

    Raises:
        ConfigError: if there is none, or it is not certain.
    """
    of_bytes = {
        key: values[0]
        for key, values in parsed[0].items()
        if len(values) == 1 and isinstance(values[0], bytes) and values[0]
    }
    images = [key for key, value in of_bytes.items() if image_formats.sniff_format(value) is not None]
    usual = [key for key in _IMAGE_KEYS if key in images]
    if usual or len(images) == 1:
        return (usual or images)[0]
    if images:
        raise errors.ConfigError(
            "index-several-image-features",
            f"{where} has several images, {', '.join(sorted(images))}: choose one with --image KEY",
        )
    pixels = [key for key, value in of_bytes.items() if _is_raw(value, parsed[0], sizes)]
    usual = [key for key in _IMAGE_KEYS if key in pixels] or pixels
    if usual:
        return usual[0]
    encoded = [key for key in _IMAGE_KEYS if key in of_bytes and _is_base64(of_bytes[key])]
    if encoded:
        raise errors.ConfigError("index-feature-base64", _refuse_base64(encoded[0], where, sizes, convert))
    unshaped = [key for key in _IMAGE_KEYS if key in of_bytes]
    if unshaped:
        key, num_bytes = unshaped[0], len(of_bytes[unshaped[0]])
        raise errors.ConfigError(
            "index-feature-of-pixels",
            f"feature {key!r} of {where} holds {num_bytes:,} bytes that are no image file, and no features with "
            f"height, width and channels fit them; if these are pixels, give their shape: {convert} --set "
            f"source.tfrecord.image={key} --set 'source.tfrecord.raw_shape=[HEIGHT, WIDTH, CHANNELS]'",
        )
    raise errors.ConfigError(
        "index-no-image-feature",
        f"{where} holds no image: its features are {known}; name the right one with --image KEY",
    )


def _refuse_base64(key: str, where: str, sizes: Sequence[tuple[str, str]], convert: str) -> str:
    shape = [found for _, found in sizes]
    settings = f"--set source.tfrecord.image={key} --set source.tfrecord.base64=true"
    if len(shape) == 3:
        settings += f" --set 'source.tfrecord.raw_shape=[{', '.join(shape)}]'"
    return (
        f"feature {key!r} of {where} is base64, as TFRecorder writes pixels: readers would have to decode it for every "
        f"image of every epoch; convert the records once: {convert} {settings}"
    )


def _is_number(parsed: Sequence[Mapping[str, Any]], key: str) -> bool:
    """Returns whether each example that has the feature has one whole number in it."""
    found = [values[key] for values in parsed if key in values]
    return bool(found) and all(len(each) == 1 and isinstance(each[0], int) for each in found)


def _is_raw(data: bytes, values: Mapping[str, Any], sizes: Sequence[tuple[str, str]]) -> bool:
    """Returns whether the bytes are as many as the size of the image says."""
    if len(sizes) < 3 or image_formats.sniff_format(data) is not None:
        return False
    height, width, channels = (values[key][0] if key in values else 0 for _, key in sizes)
    return min(height, width) > 0 and 1 <= channels <= 4 and len(data) == height * width * channels


def _is_base64(data: bytes) -> bool:
    head = data[:_BASE64_HEAD]
    if len(data) < 16 or len(data) % 4 or not _BASE64.fullmatch(head):
        return False
    try:
        base64.b64decode(head[: len(head) // 4 * 4], altchars=b"-_")
    except binascii.Error:
        return False
    return True


def _find_label(parsed: Sequence[Mapping[str, Any]], label: str | None, where: str, known: str) -> str | None:
    if label == NONE:
        return None
    if label is not None:
        if not any(label in values for values in parsed):
            raise errors.ConfigError(
                "index-unknown-feature", f"--label {label!r}: {where} has no such feature; its features are {known}"
            )
        if any(isinstance(each, bytes) for values in parsed for each in values.get(label, ())):
            raise errors.ConfigError(
                "index-label-text",
                f"--label {label!r} holds text in {where}, and the reader needs numbers: choose another feature, or "
                f"imagebeam convert --config tfrecord --set label.column={label}, which numbers the classes",
            )
        return label
    numbers = [key for key in _LABEL_KEYS if _holds_numbers(parsed, key)]
    return numbers[0] if numbers else None


def _holds_numbers(parsed: Sequence[Mapping[str, Any]], key: str) -> bool:
    found = [each for values in parsed for each in values.get(key, ())]
    return bool(found) and not any(isinstance(each, bytes) for each in found)


def choose_features(
    survey: kept_features.FeatureSurvey, keys: scan_shard.Keys, wrong_sizes: Collection[str], labels: Mapping[int, int]
) -> Chosen:
    """Returns the features of the catalog, from what all records hold.

    Args:
        survey: of all records.
        keys: those that were chosen before.
        wrong_sizes: keys of sizes that are not those of the images.
        labels: number of records by label.

    Raises:
        ConfigError: if the image or the label has several kinds.
    """
    notes = []
    sources = {keys.image: features.ENCODED}
    sources |= {key: source for source, key in keys.sizes if key not in wrong_sizes}
    if keys.label is not None:
        sources[keys.label] = features.LABEL
    for key in sorted(set(wrong_sizes)):
        notes.append(f"{key} is not the size of every image, and is not used as such")
    chosen, mixed = [], []
    for key, use in sorted(survey.uses.items()):
        if not use.kinds:
            continue
        if len(use.kinds) > 1:
            if key in (keys.image, keys.label):
                places = " and ".join(f"{kind} in {place}" for kind, place in sorted(use.kinds.items()))
                raise errors.ConfigError(
                    "index-feature-type", f"feature {key!r} holds {places}: choose another one, or write those again"
                )
            mixed.append(key)
            continue
        [kind] = use.kinds
        chosen.append(_feature(key, kind, use.num_single < survey.num_records, sources))
    if mixed:
        named = plural.name_some(mixed, _MAX_NAMED)
        notes.append(f"features of several kinds, which the reader does not give: {named}")
    label_kind = next((feature.kind for feature in chosen if feature.source == features.LABEL), None)
    if label_kind == features.INT64 and _are_classes(labels):
        label_kind = "class"
    return Chosen(features.in_order(chosen), label_kind, tuple(notes))


def _feature(key: str, kind: str, many: bool, sources: Mapping[str, str]) -> features.Feature:
    if key in sources:
        return features.Feature(key, sources[key], kind, many)
    standard = features.STANDARD.get(key)
    is_standard = standard is not None and key not in _NOT_TAKEN and standard.kind == kind
    if is_standard and standard is not None and (standard.many or not many):
        return features.Feature(key, key, kind, standard.many)
    return features.Feature(key, f"columns/{key}", kind, many)


def _are_classes(labels: Mapping[int, int]) -> bool:
    return (
        bool(labels)
        and len(labels) <= scan_shard.MAX_CLASSES
        and -1 <= min(labels) <= max(labels) <= 10 * scan_shard.MAX_CLASSES
    )


def merge_names(scans: Sequence[scan_shard.ShardScan]) -> dict[str, dict[int, str]]:
    """Returns the name of each label by the key of the text, for the texts that name one label each."""
    merged: dict[str, dict[int, str]] = {}
    clashes = set()
    for key in {key for scan in scans for key in scan.names}:
        names: dict[int, str] = {}
        for scan in scans:
            if key not in scan.names and scan.records:
                clashes.add(key)
            for label, name in scan.names.get(key, {}).items():
                if names.setdefault(label, name) != name:
                    clashes.add(key)
        if key not in clashes and names and len(set(names.values())) == len(names):
            merged[key] = names
    return merged


class Classes(NamedTuple):
    """The classes of a dataset."""

    names: tuple[str, ...]  # the first is that of the id `base`
    base: int
    notes: tuple[str, ...] = ()


def choose_classes(
    labels: Mapping[int, int], names: Mapping[str, Mapping[int, str]], listed: Sequence[str] | None, base: int | None
) -> Classes:
    """Returns the names of the classes and the id of the first.

    Args:
        labels: number of records by label.
        names: as `merge_names` returns them.
        listed: names of all classes in a file of the tool; None if there is none.
        base: id of the first class; None to find it.
    """
    lowest, highest = min((each for each in labels if each >= 0), default=0), max(labels)
    notes = []
    if -1 in labels:
        notes.append(f"{labels[-1]:,} records have the label -1, which means none")
    if listed is not None and base is None and highest < len(listed):
        base = 0
    if base is None:
        base = 1 if lowest == 1 else 0
        if base == 1:
            notes.append("no record has the label 0, so ids begin at 1; if they begin at 0, give --label-base 0")
    if base > lowest:
        raise errors.ConfigError(
            "index-label-base", f"--label-base is {base}, and records have the label {lowest}: give --label-base 0"
        )
    if listed is not None and highest - base < len(listed):
        return Classes(tuple(listed), base, tuple(notes))
    for key in _TEXT_KEYS:
        if key in names:
            found = [names[key].get(each, str(each)) for each in range(base, highest + 1)]
            if len(set(found)) == len(found):
                return Classes(tuple(found), base, tuple(notes))
    return Classes(tuple(map(str, range(base, highest + 1))), base, tuple(notes))


def as_counts(labels: Mapping[int, int], classes: Classes) -> dict[str, int]:
    """Returns the number of records by the name of the class."""
    last = classes.base + len(classes.names)
    counted: collections.Counter[str] = collections.Counter()
    for label, count in labels.items():
        if classes.base <= label < last:
            counted[classes.names[label - classes.base]] += count
    return dict(sorted(counted.items()))
