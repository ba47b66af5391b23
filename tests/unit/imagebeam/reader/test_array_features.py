"""Features whose values are always an array of one shape: embeddings, latents."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import imagebeam
from imagebeam import errors, example, features
from imagebeam.pipelines import inspect_dataset, verify_dataset
from tests import error_texts
from tests.unit.imagebeam.reader import sized_sets, written

tf = pytest.importorskip("tensorflow")

pytestmark = pytest.mark.usefixtures("unchanged_graphs")

COUNT = 23
EMBEDDING = features.Feature("image/embedding", "image/embedding", features.FLOAT, True, (8,))
TOKENS = features.Feature("tokens", "columns/tokens", features.INT64, True, (2, 3))
NAMES = features.Feature("names", "columns/names", features.BYTES, True, (2, 2))
ONE = features.Feature("one", "columns/one", features.FLOAT, True, ())
SHAPED = (EMBEDDING, TOKENS, NAMES, ONE)
WANTED = (*written.IMAGE, written.LABEL, *written.BOXES, *SHAPED)
XMIN = written.BOX_KEYS[0]
ASKED = ("image/key", *(each.key for each in SHAPED))
WHOLE: dict[str, Any] = {"image_size": 16, "crop": "squash", "flip": False, "num_epochs": 1}


def arrays_of(index: int) -> dict[str, np.ndarray]:
    """Returns the arrays of an example by key."""
    rng = np.random.default_rng(index)
    names = [f"{index} {number}".encode() + b"\0" * number for number in range(4)]
    return {
        EMBEDDING.key: rng.normal(size=8).astype(np.float32),
        TOKENS.key: rng.integers(-(2**31), 2**31, (2, 3)),
        NAMES.key: np.array(names, object).reshape(2, 2),
        ONE.key: np.full((), index, np.float32),
    }


def values_of(index: int) -> dict[str, Any]:
    arrays = {each.source: tuple(arrays_of(index)[each.key].ravel().tolist()) for each in SHAPED}
    boxes = {key: (0.25,) * (index % 3) for key in written.BOX_KEYS}
    return {**written.jpeg_values(index), features.LABEL: index % 2, **boxes, **arrays}


EXAMPLES = [values_of(index) for index in range(COUNT)]


def write(folder: pathlib.Path, wanted: Any = WANTED, examples: Any = EXAMPLES, num_shards: int = 3) -> Any:
    return written.write(folder, wanted, examples, labels=("cat", "dog"), num_shards=num_shards)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> imagebeam.ImageDataset:
    return write(tmp_path_factory.mktemp("arrays") / "out")


def check_rows(batch: dict[str, Any], rows: int | None = None) -> list[int]:
    """Compares the arrays of a batch with what was written; returns which examples it holds."""
    found = [int(np.asarray(key)) for key in batch["image/key"][:rows]]
    for row, index in enumerate(found):
        for key, expected in arrays_of(index).items():
            array = np.asarray(batch[key][row], expected.dtype)
            assert (array.shape, array.tolist()) == (expected.shape, expected.tolist())
    return found


def as_numpy(dataset: imagebeam.ImageDataset, size: int, **options: Any) -> Iterator[Any]:
    for batch in dataset.as_numpy("train", size, **options):
        kinds = {each.key: features.NUMPY_DTYPES[each.kind] for each in SHAPED}
        assert {key: batch[key].dtype for key in kinds} == kinds
        yield batch


def as_mixture(dataset: imagebeam.ImageDataset, size: int, **options: Any) -> Iterator[Any]:
    pair = [(dataset, "train[:12]"), (dataset, "train[12:]")]
    yield from imagebeam.Mixture(pair, [12, 11]).as_numpy(size, **options)


@pytest.mark.parametrize("feed", [as_numpy, as_mixture])
@pytest.mark.parametrize("padded", [False, True], ids=["full", "padded"])
def test_batch_has_arrays_of_the_shape(
    dataset: imagebeam.ImageDataset, feed: Callable[..., Iterator[Any]], padded: bool, decoder: str
) -> None:
    found = []
    options = {**WHOLE, "decoder": decoder, "pad": padded, "drop_remainder": not padded}
    for batch in feed(dataset, 4, features=ASKED, **options):
        assert batch[TOKENS.key].shape == (4, 2, 3)
        rows = int(batch["mask"].sum()) if padded else 4
        found += check_rows(batch, rows)
        for each in (EMBEDDING, TOKENS, NAMES):
            assert not np.any(np.asarray(batch[each.key][rows:], object))  # zeros, or empty bytes
    if feed is not as_mixture:  # which ends where the first of its datasets was read
        assert len(found) == len(set(found)) == (COUNT if padded else 20)


def test_every_feed_has_the_arrays_of_numpy(dataset: imagebeam.ImageDataset) -> None:
    sized_sets.check_feeds(sized_sets.OfSplit(dataset), 4, **WHOLE, features=ASKED)


def test_tensors_have_the_shape_without_a_batch_size_too(dataset: imagebeam.ImageDataset) -> None:
    examples = dataset.as_tf("train", features=ASKED, shuffle=None, **WHOLE)
    assert examples.element_spec[EMBEDDING.key] == tf.TensorSpec([8], tf.float32)
    assert examples.element_spec[NAMES.key] == tf.TensorSpec([2, 2], tf.string)
    one_by_one = [{key: [value] for key, value in each.items()} for each in examples.as_numpy_iterator()]
    assert [index for each in one_by_one for index in check_rows(each)] == list(range(COUNT))
    spec = dataset.as_tf("train", 4, features=ASKED, **WHOLE).element_spec
    assert spec[TOKENS.key] == tf.TensorSpec([4, 2, 3], tf.int64)


def test_list_size_is_for_lists_without_a_shape(dataset: imagebeam.ImageDataset) -> None:
    batch = next(dataset.as_numpy("train", 4, features=(*ASKED, XMIN), list_size=5, **WHOLE))
    assert {key: batch[key].shape for key in batch if key.endswith("/count")} == {f"{XMIN}/count": (4,)}
    assert (batch[XMIN].shape, len(check_rows(batch))) == ((4, 5), 4)
    with error_texts.raises("options-conflict"):
        dataset.as_tf("train", 4, features=ASKED, list_size=5)


def test_source_for_grain_has_arrays(dataset: imagebeam.ImageDataset) -> None:
    source = dataset.as_grain("train")
    for index in range(COUNT):
        each = source[index]
        assert check_rows({key: [value] for key, value in each.items()}) == [index]
        assert [each[key].dtype for key in (EMBEDDING.key, TOKENS.key, NAMES.key)] == [np.float32, np.int64, object]
    stacked = np.stack([source[index][TOKENS.key] for index in range(3)])  # as the default collate of PyTorch
    assert stacked.shape == (3, 2, 3)


def test_spec_parses_records_to_the_shape(dataset: imagebeam.ImageDataset) -> None:
    stored = written.stored_in(pathlib.Path(dataset.directory))
    assert check_rows(tf.io.parse_example(stored, dataset.feature_spec)) == list(range(COUNT))


# --- wrong values ----------------------------------------------------------------------------------------------------

FLOATS = example.EncodedValues(example.encode_values(features.FLOAT, (0.5,) * 6))
FAULTS = {
    "few": (EMBEDDING, (0.0,) * 7, "feature 'image/embedding' has 7 values, expected 8 of the shape [8]"),
    "none": (NAMES, (), "feature 'names' has 0 values, expected 4 of the shape [2, 2]"),
    "many": (TOKENS, (0,) * 1000, "feature 'tokens' has 1,000 values, expected 6 of the shape [2, 3]"),
    "kind": (TOKENS, FLOATS, "feature 'tokens' is not stored as int64"),
}


@pytest.fixture(params=FAULTS)
def faulty(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> tuple[imagebeam.ImageDataset, str]:
    """A dataset whose example 3 has a wrong array; and what is wrong with it."""
    feature, value, text = FAULTS[request.param]
    broken = {**EXAMPLES[3], feature.source: value}
    return write(tmp_path / "out", examples=[*EXAMPLES[:3], broken, *EXAMPLES[4:]], num_shards=1), text


def test_array_of_another_length_is_an_error_that_names_the_record(
    faulty: tuple[imagebeam.ImageDataset, str], decoder: str
) -> None:
    dataset, text = faulty
    options = {**WHOLE, "features": ASKED, "shuffle": None, "decoder": decoder}
    with pytest.raises(errors.ExampleError) as raised:
        list(dataset.as_numpy("train", 4, **options))
    assert "record 3 of shard" in str(raised.value)
    assert text in str(raised.value)
    skipped = dataset.as_numpy("train", 4, on_error="skip", drop_remainder=False, **options)
    assert [index for batch in skipped for index in check_rows(batch)] == [each for each in range(COUNT) if each != 3]
    others = dataset.as_numpy("train", 4, features=(XMIN,), **WHOLE)
    assert len(list(others)) == 5  # the array is not asked for


def test_index_of_an_example_with_a_wrong_array_is_an_error(faulty: tuple[imagebeam.ImageDataset, str]) -> None:
    dataset, text = faulty
    with pytest.raises(errors.ExampleError) as raised:
        dataset.as_grain("train")[3]
    assert "record 3 of shard" in str(raised.value)
    assert text in str(raised.value)


def test_verify_names_the_record(faulty: tuple[imagebeam.ImageDataset, str]) -> None:
    dataset, text = faulty
    [problem] = verify_dataset.verify(dataset.directory, decode=True).problems
    assert problem.detail == f"record 3: {text}"


def test_arrays_of_other_shapes_are_not_mixed(dataset: imagebeam.ImageDataset, tmp_path: pathlib.Path) -> None:
    wanted = tuple(each._replace(shape=(3, 2)) if each == TOKENS else each for each in WANTED)
    other = write(tmp_path / "other", wanted=wanted)
    pair = [(dataset, "train"), (other, "train")]
    assert imagebeam.mix(pair, [1, 1], 2, features=(EMBEDDING.key,), image_size=16) is not None
    with error_texts.raises("mixture-features-differ"):
        imagebeam.mix(pair, [1, 1], 2, features=(TOKENS.key,), image_size=16)


def test_array_is_no_weight(dataset: imagebeam.ImageDataset) -> None:
    with error_texts.raises("weights-mismatch"):
        dataset.as_tf("train", 4, weights=EMBEDDING.key)


def test_table_of_inspect_shows_the_shape(dataset: imagebeam.ImageDataset) -> None:
    rows = dict(inspect_dataset.feature_rows(dataset.catalog))
    assert (rows["  image/embedding"], rows["  tokens"]) == ("float [8]", "int64 [2, 3]")
