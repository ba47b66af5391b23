"""Computes columns with tf.Transform. Imports TensorFlow, so only jobs that transform columns import this module.

Everything is computed in 64 bits and rounded to the 32 bits of an example at the end.
"""

import dataclasses
import functools
import os
import urllib.parse
from collections.abc import Callable, Sequence
from typing import Any

import apache_beam as beam
import pyarrow as pa
import tensorflow as tf
import tensorflow_transform as tft
import tensorflow_transform.beam as tft_beam
from tensorflow_metadata.proto.v0 import schema_pb2
from tfx_bsl.public import tfxio

from imagebeam import features
from imagebeam.transforms import step
from imagebeam.transforms.columns import analyze_values
from imagebeam.transforms.elements import ColumnTransform

_ARROW_TYPES = {features.BYTES: pa.large_binary(), features.INT64: pa.int64(), features.FLOAT: pa.float32()}
_TENSOR_TYPES = {features.BYTES: tf.string, features.INT64: tf.int64, features.FLOAT: tf.float32}
_ALIGNED = 16  # rows: TensorFlow computes rows that do not fill a SIMD vector with other instructions

Tensors = dict[str, tf.Tensor]


def to_record_batch(transforms: Sequence[ColumnTransform], values: Sequence[Sequence[Any]]) -> pa.RecordBatch:
    """Converts raw values, column by column, to the form that tf.Transform reads: lists of one value each."""
    offsets = pa.array(range(len(values[0]) + 1), pa.int64())
    arrays = [
        pa.LargeListArray.from_arrays(offsets, pa.array(column, _ARROW_TYPES[transform.kind]))
        for transform, column in zip(transforms, values)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=_arrow_schema(transforms))


def _arrow_schema(transforms: Sequence[ColumnTransform]) -> pa.Schema:
    return pa.schema([(each.column, pa.large_list(_ARROW_TYPES[each.kind])) for each in transforms])


def _adapter(transforms: Sequence[ColumnTransform]) -> tfxio.TensorAdapterConfig:
    """Declares that each column is a tensor of one value per row."""
    dense = schema_pb2.TensorRepresentation.DenseTensor
    representations = {
        each.column: schema_pb2.TensorRepresentation(dense_tensor=dense(column_name=each.column, shape={}))
        for each in transforms
    }
    return tfxio.TensorAdapterConfig(_arrow_schema(transforms), representations)


@dataclasses.dataclass
class AnalyzeColumns(step.Step):
    """Analyses batches of raw values, each a list of columns, and writes tf.Transform's output into a folder."""

    transforms: tuple[ColumnTransform, ...]
    folder: str

    def expand(self, batches: beam.PCollection[Any]) -> beam.PCollection[None]:
        records = batches | "ToRecordBatches" >> beam.Map(
            functools.partial(to_record_batch, self.transforms)
        ).with_output_types(pa.RecordBatch)
        with tft_beam.Context(temp_dir=f"{self.folder}/temporary"):
            analyze = tft_beam.AnalyzeDataset(preprocessing_fn(self.transforms))
            transform_fn = (records, _adapter(self.transforms)) | "Analyze" >> analyze
            return transform_fn | "WriteTransformFn" >> tft_beam.WriteTransformFn(self.folder)


def preprocessing_fn(transforms: Sequence[ColumnTransform]) -> Callable[[Tensors], Tensors]:
    """Returns the function that tf.Transform traces: from columns by name to features by key."""

    def transform(raw: Tensors) -> Tensors:
        return {each.key: _FUNCTIONS[each.name](raw[each.column], each) for each in transforms}

    return transform


def _z_score(raw: tf.Tensor, transform: ColumnTransform) -> tf.Tensor:
    compute = analyze_values.ComputeMoments(transform.column)
    (moments,) = tft.experimental.ptransform_analyzer([raw], compute, [tf.float64], [[2]])
    mean, variance = moments[0], moments[1]
    # the variance of equal values is exactly 0
    return _to_float32(tf.math.divide_no_nan(tf.cast(raw, tf.float64) - mean, tf.sqrt(variance)))


def _scale_0_1(raw: tf.Tensor, transform: ColumnTransform) -> tf.Tensor:
    """Scales to 0..1. tft.scale_to_0_1 returns a sigmoid for a column whose values are all the same."""
    values = tf.cast(raw, tf.float64)
    low, high = tft.min(values), tft.max(values)
    return _to_float32(tf.math.divide_no_nan(values - low, high - low))


def _log(raw: tf.Tensor, transform: ColumnTransform) -> tf.Tensor:
    """Returns the natural logarithm. Convert rejects values without one earlier; when serving, they are an error."""
    complaint = f"column {transform.column!r} holds a value that has no logarithm: not above 0"
    with tf.control_dependencies([tf.debugging.assert_positive(raw, message=complaint)]):
        return _to_float32(tf.math.log(tf.cast(tf.identity(raw), tf.float64)))


def _bucketize(raw: tf.Tensor, transform: ColumnTransform) -> tf.Tensor:
    compute = analyze_values.ComputeQuantiles(transform.column, transform.buckets)
    (boundaries,) = tft.experimental.ptransform_analyzer([raw], compute, [tf.float32], [[1, transform.buckets - 1]])
    return tft.apply_buckets(raw, boundaries)


def _vocabulary(raw: tf.Tensor, transform: ColumnTransform) -> tf.Tensor:
    return tft.compute_and_apply_vocabulary(
        raw,
        default_value=-1,
        top_k=transform.top_k,
        num_oov_buckets=transform.num_oov_buckets,
        vocab_filename=vocabulary_file(transform.column),
    )


def vocabulary_file(column: str) -> str:
    """Returns the name of a column's vocabulary among the saved transform's assets."""
    return urllib.parse.quote(column, safe="")


def _to_float32(values: tf.Tensor) -> tf.Tensor:
    """Rounds to 32 bits. Values far outside the analysed range become the largest float, not infinity."""
    largest = tf.constant(tf.float32.max, tf.float64)
    return tf.cast(tf.clip_by_value(values, -largest, largest), tf.float32)


_FUNCTIONS: dict[str, Callable[[tf.Tensor, ColumnTransform], tf.Tensor]] = {
    "z_score": _z_score,
    "scale_0_1": _scale_0_1,
    "log": _log,
    "bucketize": _bucketize,
    "vocabulary": _vocabulary,
}


class SavedTransform:
    """tf.Transform's output as serving uses it: loaded by TensorFlow alone."""

    def __init__(self, folder: str, transforms: Sequence[ColumnTransform]):
        self._loaded = tf.saved_model.load(os.path.join(folder, tft.TFTransformOutput.TRANSFORM_FN_DIR))
        self._transforms = transforms

    def apply(self, values: Sequence[Sequence[Any]]) -> list[list[Any]]:
        """Returns the transformed values of columns, in the order of the transforms."""
        num_rows = len(values[0])
        raw = {
            transform.column: tf.constant(_padded(column), _TENSOR_TYPES[transform.kind])
            for transform, column in zip(self._transforms, values)
        }
        with tf.device("/CPU:0"):  # a GPU's logarithm has other last bits
            transformed = self._loaded.transform_fn(raw)
        return [transformed[each.key].numpy()[:num_rows].tolist() for each in self._transforms]


def _padded(column: Sequence[Any]) -> Sequence[Any]:
    return list(column) + [column[-1]] * (-len(column) % _ALIGNED)
