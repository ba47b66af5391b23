"""References to what a snapshot holds: records to copy, and rejected images, which take a place in the order too.

A fresh conversion divides its shards before it finds out which images are bad. So rejected images are ranked with the
records. Imports no Beam, as writer processes use it.
"""

from __future__ import annotations

from imagebeam.transforms import elements
from imagebeam.transforms.snapshots import image_states


def of_record(image: image_states.ImageState, split: str, uri: str, start: int, end: int) -> elements.ImageRef:
    """Returns the reference to a record of a shard.

    Args:
        image: its state.
        split: of the shard.
        uri: address of the shard.
        start: byte offset of the record with its frame, in the unpacked shard.
        end: byte offset of its end.
    """
    return elements.ImageRef(
        image.key,
        uri,
        size=image.num_bytes,
        offset=start,
        length=end - start,
        position=image.position,
        label=image.labels,
        split=split,
        columns=(image.measures,),
        fingerprint=image.fingerprint,
        content=image.content,
    )


def of_reject(state: image_states.RejectState) -> elements.ImageRef:
    """Returns the reference to an image that was rejected while its shard was written."""
    return elements.ImageRef(
        state.reject.key,
        state.reject.uri,
        size=state.num_bytes,
        position=state.position,
        split=state.split,
        columns=(state.reject,),
        fingerprint=state.fingerprint,
        content=state.content,
    )


def reject_of(ref: elements.ImageRef) -> elements.Reject | None:
    """Returns why the image was rejected; None for a record."""
    (held,) = ref.columns
    return held if isinstance(held, elements.Reject) else None


def measures_of(ref: elements.ImageRef) -> elements.Measures:
    """Returns what the statistics count of the image in a record."""
    (held,) = ref.columns
    assert isinstance(held, elements.Measures), "a rejected image has no record"
    return held
