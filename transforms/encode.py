"""Turns a reference and its checked image into the bytes of one tf.train.Example."""

from __future__ import annotations

import dataclasses
import functools
import posixpath
from collections.abc import Mapping

from imagebeam import example, features
from transforms import hashing, images, references


@dataclasses.dataclass(frozen=True)
class ExampleRecipe:
    """What an example holds: its features, and the ids of the classes."""

    features: tuple[features.Feature, ...]
    label_ids: Mapping[str, int]  # empty where the label is a number or there is none
    columns: tuple[str, ...] = ()  # names of the values in ImageRef.columns

    @functools.cached_property
    def _encoder(self) -> example.ExampleEncoder:
        return example.ExampleEncoder(self.features)

    def encode(self, ref: references.ImageRef, image: images.Image) -> tuple[bytes, bytes]:
        """The serialized example in two pieces, the second the image's bytes, uncopied."""
        key = hashing.encode_key(ref.key)
        values: dict[str, example.Value] = {
            "image/format": image.format.encode(),
            "image/height": image.height,
            "image/width": image.width,
            "image/channels": image.channels,
            "image/colorspace": image.colorspace.encode(),
            "image/filename": hashing.encode_key(posixpath.basename(ref.uri)),
            "image/key": key,
            "image/source_id": key,
        }
        if isinstance(ref.label, str):
            text = hashing.encode_key(ref.label)
            values[features.LABEL] = self.label_ids[ref.label]
            values[features.TEXT] = values["image/class/synset"] = text
        elif ref.label is not None:
            values[features.LABEL] = ref.label
        for name, value in zip(self.columns, ref.columns):
            values[f"columns/{name}"] = value
        return self._encoder.encode(values, image.data)
