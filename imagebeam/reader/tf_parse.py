"""Records read and parsed for TensorFlow's decoders, a chunk of consecutive positions at a time.

Used where the decoder in C cannot read the records (`batch_reader.why_not`).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from imagebeam import errors, features
from imagebeam.reader import (
    bare_pixels,
    crops,
    list_features,
    python_calls,
    read_plan,
    record_bytes,
    record_reader,
    shared_graphs,
    tf_decode,
)
from imagebeam.reader import options as options_lib

_UNDECODABLE = "the image cannot be decoded; imagebeam verify --decode finds all such"

Batch = dict[str, tf.Tensor]


class ChunkReader:
    """The Python functions that the graph calls: one reads a chunk of records, one handles examples that were lost."""

    def __init__(self, plan: read_plan.ReadPlan, options: options_lib.ReadOptions):
        self._records = record_reader.RecordReader(plan, options)
        self._order = plan.schedule.order
        self._has_lists = bool(plan.lists)
        self._lock = threading.Lock()
        self._troubles: dict[int, record_bytes.Trouble] = {}  # by record; only the records that could not be read
        self._failure: errors.ImagebeamError | None = None

    @property
    def spare(self) -> int:
        """Number of positions after the last one where replacements of skipped examples are looked for."""
        return self._records.spare

    def read(self, first: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, ...]:
        """Returns the records at positions `first` to `end`.

        Returns:
            bytes [n], empty for a record that cannot be read; int64 [n], positions; float32 [n, crops.NUM_UNIFORMS],
            random numbers; if there are lists, bytes [n]. With n = 0 the pipeline ends.
        """
        with python_calls.calls:
            if python_calls.calls.is_closed:
                end = first
            try:
                chunk = self._records.read(int(first), int(end))
            except errors.ImagebeamError as e:  # about a whole shard: `report_lost` raises it for its missing records
                self._failure = self._failure or e
                raise
            contents = np.empty(len(chunk.contents), object)
            for index, content in enumerate(chunk.contents):
                if isinstance(
                    content, record_bytes.Trouble
                ):  # empty bytes cannot be decoded: `report_lost` finds the gap
                    with self._lock:
                        self._troubles[int(chunk.records[index])] = content
                    content = b""
                contents[index] = content
            if not self._has_lists:
                return contents, chunk.positions, chunk.uniforms
            return contents, chunk.positions, chunk.uniforms, self._pack_lists(contents)

    def _pack_lists(self, contents: np.ndarray) -> np.ndarray:
        packed = np.full(len(contents), b"", object)
        for index, content in enumerate(contents):
            with contextlib.suppress(ValueError):  # not an Example: parsing it in the graph fails too
                packed[index] = self._records.pack_lists(content)
        return packed

    def report_lost(
        self, expected: np.ndarray, found: np.ndarray, following: np.ndarray, is_end: np.ndarray
    ) -> np.ndarray:
        """Skips or refuses the examples at positions from `expected` to `following` that are missing in `found`.

        Args:
            expected: int64 [], the first position that was expected.
            found: int64 [n], the positions that were found.
            following: int64 [], the position after them.
            is_end: bool [], whether `found` is only the blank batch that marks the end, which replaces no example.

        Returns:
            `following`.

        Raises:
            ExampleError: if an example may not be skipped, or none is left to replace one.
        """
        with python_calls.calls:
            if self._failure is not None:
                raise self._failure.with_traceback(None)  # which would grow each time
            if not python_calls.calls.is_closed:
                lost = np.setdiff1d(np.arange(int(expected), int(following), dtype=np.int64), found)
                records, _ = self._order.locate(lost)
                for position, record in zip(lost.tolist(), records.tolist()):
                    trouble = self._troubles.get(record) or self._records.trouble(record, _UNDECODABLE)
                    try:
                        self._records.lose(position, trouble)
                    except errors.ExampleError as e:
                        # A caller who goes on gets this error again: `gaps` takes the examples after it for lost too.
                        self._failure = e
                        raise
                if is_end and len(lost) >= self.spare > 0:
                    raise self._records.no_replacement(int(expected))
            return following


def read_and_parse(
    call: shared_graphs.Call,
    plan: read_plan.Layout,
    options: options_lib.ReadOptions,
    first: tf.Tensor,
    end: tf.Tensor,
) -> Batch:
    """Returns the examples at positions `first` to `end`, encoded: as `parse`, with "position" and the packed lists.

    `call` calls a ChunkReader.
    """
    dtypes = [tf.string, tf.int64, tf.float32, *([tf.string] if plan.lists else [])]
    serialized, positions, uniforms, *packed = call("read", [first, end], dtypes)
    uniforms.set_shape([None, crops.NUM_UNIFORMS])
    for each in (serialized, positions, *packed):
        each.set_shape([None])
    chunk = parse(serialized, uniforms, plan, options) | {"position": positions}
    return chunk | dict(zip([list_features.PACKED], packed))


def parse(
    serialized: tf.Tensor, uniforms: tf.Tensor, plan: read_plan.Layout, options: options_lib.ReadOptions
) -> Batch:
    """Returns what the decoder needs of each example, and the features with one value.

    Args:
        serialized: string [n], records.
        uniforms: float32 [n, crops.NUM_UNIFORMS] in [0, 1).
        plan: plan of the reader, or its layout.
        options: options of the reader.

    Returns:
        "encoded", for `tf_decode.make_decoder`; for bare pixels their "shape", int64 [n, 3]; if the options ask for
        them "part", int32 [n, 4], "frame", float64 [n, 4], as `crops.frames`, and "flip", bool [n];
        "label" and the extra features, each [n].
    """
    image = plan.by_source[features.ENCODED]
    stored = [plan.by_source.get(source) for source in bare_pixels.SHAPE[: 3 if plan.is_raw else 2]]
    wanted = [*plan.columns, *(feature for feature in stored if feature is not None)]
    spec = {
        f.key: tf.io.FixedLenFeature([], list_features.TF_TYPES[f.kind], features.EMPTY_VALUES[f.kind]) for f in wanted
    }
    spec[image.key] = list_features.spec_of(image) if image.many else tf.io.FixedLenFeature([], tf.string, "")
    parsed = tf.io.parse_example(serialized, spec)
    chunk = {"encoded": parsed[image.key]}
    if plan.is_raw:
        chunk["shape"] = tf.stack([parsed[feature.key] for feature in stored if feature is not None], axis=1)
    if options.flips:
        chunk["flip"] = uniforms[:, -1] < 0.5
    if options.crop is not None:
        height, width = dimensions(parsed, stored[:2], parsed[image.key])
        chunk["part"] = draw_windows(height, width, uniforms, options)
        if options.filters:
            chunk["frame"] = frames(height, width, chunk["part"], options)
    for name, feature in zip(plan.column_names, plan.columns, strict=True):
        values = parsed[feature.key]
        chunk[name] = _label(values, feature.kind, plan, options) if name == "label" else values
    return chunk


def draw_windows(
    height: tf.Tensor, width: tf.Tensor, uniforms: tf.Tensor, options: options_lib.ReadOptions
) -> tf.Tensor:
    """Returns the part of each image that the batch takes, int32 [n, 4], as `crops.windows`."""

    def draw(height: np.ndarray, width: np.ndarray, uniforms: np.ndarray) -> np.ndarray:
        with python_calls.calls:
            return crops.windows(height, width, uniforms, options)

    part = tf.numpy_function(draw, [height, width, uniforms], tf.int32, stateful=False)
    return tf.ensure_shape(part, [None, 4])


def frames(height: tf.Tensor, width: tf.Tensor, part: tf.Tensor, options: options_lib.ReadOptions) -> tf.Tensor:
    """Returns where in its part the pixels of each resized image are, float64 [n, 4], as `crops.frames`."""

    def compute(height: np.ndarray, width: np.ndarray, part: np.ndarray) -> np.ndarray:
        with python_calls.calls:
            return crops.frames(height, width, part, options)

    frame = tf.numpy_function(compute, [height, width, part], tf.float64, stateful=False)
    return tf.ensure_shape(frame, [None, 4])


def dimensions(
    parsed: Batch, stored: Sequence[features.Feature | None], encoded: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns heights and widths, int32 [n]: as stored, or read from the images if the config dropped them."""
    height, width = stored
    if height is not None and width is not None:
        return tf.cast(parsed[height.key], tf.int32), tf.cast(parsed[width.key], tf.int32)

    def shape_of(image: tf.Tensor) -> tf.Tensor:
        return tf.cond(
            tf_decode.starts_as_jpeg(image),
            lambda: tf.image.extract_jpeg_shape(image),
            lambda: tf.cond(
                tf.strings.length(image) > 0,
                lambda: tf.shape(tf.io.decode_image(image, 3, expand_animations=False)),
                lambda: tf.constant([1, 1, 3]),
            ),
        )

    shapes = tf.map_fn(shape_of, encoded, fn_output_signature=tf.TensorSpec([3], tf.int32))
    return shapes[:, 0], shapes[:, 1]


def _label(values: tf.Tensor, kind: str, plan: read_plan.Layout, options: options_lib.ReadOptions) -> tf.Tensor:
    if kind == features.FLOAT:
        return values
    return tf.cast(values + (options.label_base - plan.label_base), tf.int32)
