"""A column that tf.Transform computes, as the config describes it. Imports neither Beam nor TensorFlow."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class ColumnTransform:
    """A column that tf.Transform computes."""

    column: str  # name in the table, and of the saved transform's input
    key: str  # key of the feature in the examples, and of the saved transform's output
    position: int  # in ImageRef.columns
    kind: str  # kind of the raw values: bytes, int64 or float; Config.resolve_features decides the transformed kind
    name: str  # z_score, scale_0_1, log, bucketize or vocabulary
    buckets: int = 10
    top_k: int | None = None
    num_oov_buckets: int = 0
