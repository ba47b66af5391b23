"""Requested features under any key, in every feed, with both decoders: each comes as stored, or is refused."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import imagebeam
from imagebeam import errors, features
from tests import error_texts
from tests.unit.imagebeam.reader import written
from tests.unit.imagebeam.reader.feeding import one_device

tf = pytest.importorskip("tensorflow")

pytestmark = pytest.mark.usefixtures("unchanged_graphs")

COUNT = 12
LABEL, ENCODED, LIST = "image/class/label", "image/encoded", "spots"
COLUMNS = ("image", "mask", "label", "lists", "position", "features/x", "spots/count")


def values_of(index: int, labels: Any) -> dict[str, Any]:
    columns = {f"columns/{name}": 100 * number + index for number, name in enumerate(COLUMNS)}
    spots = tuple(range(index % 3))
    return {**written.jpeg_values(index), **columns, f"columns/{LIST}": spots, features.LABEL: labels}


WANTED = (
    *written.IMAGE,
    *(features.Feature(name, f"columns/{name}", features.INT64) for name in COLUMNS),
    features.Feature(LIST, f"columns/{LIST}", features.INT64, True),
)


@pytest.fixture(scope="module", params=["one-label", "many-labels", "no-label"])
def dataset(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> imagebeam.ImageDataset:
    kind = request.param
    label = {"one-label": [written.LABEL], "many-labels": [written.MANY_LABELS], "no-label": []}[kind]
    examples = [values_of(index, 1 + index % 2 if kind == "one-label" else (1, 2)) for index in range(COUNT)]
    folder = tmp_path_factory.mktemp("names") / "out"
    labels = ("cat", "dog") if label else ()
    return written.write(folder, (*WANTED, *label), examples, labels=labels, label_base=1)


WHOLE: dict[str, Any] = {"image_size": 16, "num_epochs": 1, "shuffle": None, "drop_remainder": True}
Rows = list[dict[str, Any]]


def rows_of(batches: Any) -> Rows:
    return [
        {name: np.asarray(value[row]) for name, value in batch.items()}
        for batch in batches
        for row in range(len(batch["image"]))
    ]


def by_tf(dataset: imagebeam.ImageDataset, **options: Any) -> Rows:
    return rows_of(dataset.as_tf("train", 4, **WHOLE, **options))


def by_single_examples(dataset: imagebeam.ImageDataset, **options: Any) -> Rows:
    options = {key: value for key, value in options.items() if key not in ("decoder", "pad")}
    return [
        {key: np.asarray(value) for key, value in each.items()} for each in dataset.as_tf("train", **WHOLE, **options)
    ]


def by_numpy(dataset: imagebeam.ImageDataset, **options: Any) -> Rows:
    return rows_of(dataset.as_numpy("train", 4, **WHOLE, **options))


def by_jax(dataset: imagebeam.ImageDataset, **options: Any) -> Rows:
    return rows_of(dataset.as_jax("train", one_device(), 4, **WHOLE, **options))


def by_distributed(dataset: imagebeam.ImageDataset, **options: Any) -> Rows:
    return rows_of(dataset.as_distributed(tf.distribute.OneDeviceStrategy("cpu:0"), "train", 4, **WHOLE, **options))


def by_grain(dataset: imagebeam.ImageDataset, **options: Any) -> Rows:
    source = dataset.as_grain("train", features=options["features"])
    return [source[index] for index in range(len(source))]


FEEDS: dict[str, Callable[..., Rows]] = {
    "as_tf": by_tf,
    "single-examples": by_single_examples,
    "as_numpy": by_numpy,
    "as_jax": by_jax,
    "as_distributed": by_distributed,
    "as_grain": by_grain,
}


def expected(dataset: imagebeam.ImageDataset, key: str, index: int) -> Any:
    kind = {feature.source: feature for feature in dataset.catalog.features}
    one = features.LABEL in kind and not kind[features.LABEL].many
    stored = values_of(index, 1 + index % 2 if one else (1, 2))
    return stored.get(key, stored.get(f"columns/{key}"))


KEYS = [
    ("image/key",),
    ("image/key", "image/key"),
    (LABEL,),
    (LABEL, LABEL, "image/key"),
    (ENCODED,),
    ("image/height", "image/width"),
    ("image",),
    ("label",),
    ("mask",),
    ("lists", "position", "features/x"),
    (LIST, LIST),
]


@pytest.mark.parametrize(
    ("dataset", "decoder", "pad"),
    [
        ("one-label", "native", False),
        ("one-label", "native", True),
        ("one-label", "pillow", False),
        ("many-labels", "native", True),
        ("many-labels", "pillow", False),
        ("many-labels", "pillow", True),
        ("no-label", "native", True),
        ("no-label", "pillow", False),
    ],
    indirect=["dataset", "decoder"],
)
def test_features_requested_together_come_as_stored(dataset: imagebeam.ImageDataset, decoder: str, pad: bool) -> None:
    check_together(dataset, decoder, "as_tf", pad)


# All feeds take their batches from the same tf.data.Dataset, whichever decoder it has.
@pytest.mark.parametrize("dataset", ["one-label"], indirect=True)
@pytest.mark.parametrize("feed", ["single-examples", "as_numpy", "as_jax", "as_distributed", "as_grain"])
def test_every_feed_gives_the_same_features(dataset: imagebeam.ImageDataset, feed: str) -> None:
    check_together(dataset, "auto", feed, feed == "as_numpy")


def check_together(dataset: imagebeam.ImageDataset, decoder: str, feed: str, pad: bool) -> None:
    """Checks each of KEYS that is refused alone, and all others in one request: to build a graph takes 0.2 s."""
    together: tuple[str, ...] = ()
    for keys in KEYS:
        if is_missing(dataset, keys) or taken_by(dataset, feed, keys, pad):
            check(dataset, decoder, feed, keys, pad)
        else:
            together += keys
    check(dataset, decoder, feed, together, pad)


def is_missing(dataset: imagebeam.ImageDataset, keys: tuple[str, ...]) -> bool:
    return LABEL in keys and not dataset.labels


def taken_by(dataset: imagebeam.ImageDataset, feed: str, keys: tuple[str, ...], pad: bool) -> set[str]:
    """Returns the keys that are names of what each batch of the feed has anyway."""
    return own_of(dataset, feed, pad) & set(keys)


def own_of(dataset: imagebeam.ImageDataset, feed: str, pad: bool) -> set[str]:
    pads = pad and feed not in ("as_grain", "single-examples")
    return {"image", *(["label"] if dataset.labels else []), *(["mask"] if pads else [])}


def check(dataset: imagebeam.ImageDataset, decoder: str, feed: str, keys: tuple[str, ...], pad: bool) -> None:
    has_label = bool(dataset.labels)
    options: dict[str, Any] = {"features": keys, "decoder": decoder, "pad": pad}
    if feed == "as_jax" and LIST in keys:
        options["list_size"] = 2
        keys = (*keys, f"{LIST}/count")
    if is_missing(dataset, keys):
        with error_texts.raises("feature-unknown"):
            FEEDS[feed](dataset, **options)
        return
    if taken_by(dataset, feed, keys, pad):
        with error_texts.raises("feature-name-taken"):
            FEEDS[feed](dataset, **options)
        return
    rows = FEEDS[feed](dataset, **options)
    assert len(rows) == COUNT
    for index, row in enumerate(rows):
        assert set(row) == own_of(dataset, feed, pad) | set(keys)
        for key in keys:
            value = np.asarray(row[key])
            if feed == "as_jax" and key.startswith(LIST):
                stored = list(expected(dataset, LIST, index))
                assert value.tolist() == (len(stored) if key != LIST else stored + [0] * (2 - len(stored)))
                continue
            assert value.tolist() == np.asarray(expected(dataset, key, index)).tolist()
        if has_label and not many_labels(dataset):
            assert int(row["label"]) == index % 2
        elif has_label:
            assert np.asarray(row["label"]).tolist() == [1, 1]


def many_labels(dataset: imagebeam.ImageDataset) -> bool:
    return any(each.source == features.LABEL and each.many for each in dataset.catalog.features)


@pytest.mark.parametrize("dataset", ["one-label"], indirect=True)
@pytest.mark.parametrize(
    ("decoder", "feed"),
    [("native", "as_tf"), ("native", "as_numpy"), ("native", "as_jax"), ("pillow", "as_tf")],
    indirect=["decoder"],
)
def test_count_of_a_list_never_takes_a_features_name(dataset: imagebeam.ImageDataset, decoder: str, feed: str) -> None:
    rows = FEEDS[feed](dataset, features=(LIST,), list_size=2, decoder=decoder)
    assert [int(row["spots/count"]) for row in rows] == [index % 3 for index in range(COUNT)]
    with error_texts.raises("feature-name-taken"):
        FEEDS[feed](dataset, features=(LIST, "spots/count"), list_size=2, decoder=decoder)
    [*_, row] = FEEDS[feed](dataset, features=("spots/count",), decoder=decoder)
    assert int(row["spots/count"]) == expected(dataset, "spots/count", COUNT - 1)


def test_grain_gives_all_features_unless_they_clash(dataset: imagebeam.ImageDataset, tmp_path: pathlib.Path) -> None:
    with pytest.raises(errors.ConfigError, match="feature 'image' has the name of the picture in a batch"):
        dataset.as_grain("train")
    plain = written.write(tmp_path / "out", written.IMAGE, [written.jpeg_values(0)], num_shards=1)
    assert set(plain.as_grain("train")[0]) == {"image", *(each.key for each in written.IMAGE)} - {ENCODED}
    assert set(plain.as_grain("train", features=())[0]) == {"image"}
    with pytest.raises(
        errors.ConfigError, match=r"there is no feature 'image/keys'; .* \(did you mean 'image/key'\?\)"
    ):
        plain.as_grain("train", features=("image/keys",))
