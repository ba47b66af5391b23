"""Elements of a tf.data.Dataset as NumPy arrays, and the errors that come out of it."""

from __future__ import annotations

import numpy as np
import pytest

from imagebeam import errors

tf = pytest.importorskip("tensorflow")


def test_ragged_tensors_become_rows_and_tensors_arrays() -> None:
    from imagebeam.reader import numpy_iterator

    batch = {"ids": tf.ragged.constant([[1, 2], [], [3]], row_splits_dtype=tf.int64), "label": tf.constant([7, 8, 9])}
    [found] = numpy_iterator.NumpyIterator(tf.data.Dataset.from_tensors(batch))
    assert found["ids"].dtype == object
    assert [row.tolist() for row in found["ids"]] == [[1, 2], [], [3]]
    np.testing.assert_array_equal(found["label"], [7, 8, 9])


@pytest.mark.parametrize("kind", [errors.ExampleError, errors.ShardError, errors.ConfigError])
def test_error_of_imagebeam_comes_without_the_wrapper_of_tensorflow(kind: type[errors.ImagebeamError]) -> None:
    from imagebeam.reader import numpy_iterator

    def fail(number: np.ndarray) -> np.ndarray:
        raise kind("record 3 of shard x: broken")

    dataset = tf.data.Dataset.range(1).map(lambda number: tf.numpy_function(fail, [number], tf.int64))
    with pytest.raises(kind, match=r"^record 3 of shard x: broken$"):
        next(numpy_iterator.NumpyIterator(dataset))


def test_error_of_tensorflow_stays_as_it_is() -> None:
    from imagebeam.reader import numpy_iterator

    dataset = tf.data.Dataset.range(1).map(lambda number: tf.io.decode_jpeg("no JPEG"))
    with pytest.raises(tf.errors.OpError, match="JPEG"):
        next(numpy_iterator.NumpyIterator(dataset))
