"""Mean and standard deviation of pixels: from the writer's statistics, and measured on images."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as stn

from imagebeam import errors
from imagebeam.reader import normalize

IMAGES = stn.arrays(
    np.uint8,
    st.tuples(st.integers(0, 3), st.integers(1, 4), st.integers(1, 4), st.just(3)),
    elements=st.integers(0, 255),
)


@settings(deadline=None)
@given(st.lists(IMAGES, min_size=1, max_size=4))
def test_measured_statistics_are_those_of_all_pixels_together(batches: list[np.ndarray]) -> None:
    pixels = np.concatenate([batch.reshape(-1, 3) for batch in batches]).astype(np.float64)
    if not len(pixels):
        with pytest.raises(errors.ExampleError, match="none of 4 examples of train could be read or decoded, so their"):
            normalize.measure(batches, "4 examples of train")
        return
    mean, std = normalize.measure(batches, "4 examples of train")
    np.testing.assert_allclose(mean, pixels.mean(0), atol=1e-9)
    np.testing.assert_allclose(std, np.maximum(pixels.std(0), 1e-3), atol=1e-6)


def test_statistics_of_the_writer_are_those_of_train_with_a_deviation_above_zero() -> None:
    pixels = {"images": 3, "mean": [1, 2, 3], "std": [4, 0, 6]}
    found = normalize.counted_by_writer({"train": {"pixels": pixels}, "test": {"pixels": {}}})
    assert found == ((1.0, 2.0, 3.0), (4.0, 1e-3, 6.0))


@pytest.mark.parametrize("statistics", [{}, {"train": {}}, {"test": {"pixels": {"images": 1}}}])
def test_statistics_that_the_writer_did_not_count_are_none(statistics: dict[str, dict[str, object]]) -> None:
    assert normalize.counted_by_writer(statistics) is None
