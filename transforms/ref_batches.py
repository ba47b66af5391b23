"""Batches of references, which the steps of the pipeline pass on.

Beam takes some 5 us for each element at each step, which is as long as a step works on one reference.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import apache_beam as beam
from apache_beam import coders
from apache_beam.typehints import native_type_compatibility

from imagebeam.transforms import elements

_MAX_REFS = 10_000  # 6 MB
_REF_BYTES = 40  # packed, about


class RefBatch(list[elements.ImageRef]):
    """References that were listed, or are in order, together."""


class RefBatchCoder(coders.Coder):
    """Packs batches of references. Says how large a batch is without packing it: Beam asks for every one."""

    def encode(self, value: RefBatch) -> bytes:
        return elements.pack_refs(value)

    def decode(self, encoded: bytes) -> RefBatch:
        return RefBatch(elements.unpack_refs(encoded))

    def estimate_size(self, value: RefBatch) -> int:
        return _REF_BYTES * len(value)

    def is_deterministic(self) -> bool:
        return False

    def to_type_hint(self) -> type[RefBatch]:
        return RefBatch


coders.registry.register_coder(RefBatch, RefBatchCoder)


def typed(batches: beam.PCollection[Any], element_type: Any = RefBatch) -> beam.PCollection[Any]:
    """Sets the type of batches. Without the type checks of the graph Beam infers none, and would pickle every batch."""
    batches.element_type = native_type_compatibility.convert_to_beam_type(element_type)
    return batches


def batch(refs: Iterable[elements.ImageRef]) -> Iterator[RefBatch]:
    """Yields the references in batches; none for no reference."""
    rest = iter(refs)
    while some := RefBatch(itertools.islice(rest, _MAX_REFS)):
        yield some
