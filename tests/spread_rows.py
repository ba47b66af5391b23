"""Lists sources; checks that a table is listed the same in one place and spread over workers."""

from __future__ import annotations

import collections
import pickle
from collections.abc import Iterable
from typing import NamedTuple

from imagebeam.transforms import elements
from imagebeam.transforms.sources import image_source


class Listed(NamedTuple):
    """Everything that a source lists."""

    refs: list[elements.ImageRef]
    rejects: list[elements.Reject]
    skipped: dict[str, int]
    problems: list[str]


def gather(listings: Iterable[image_source.Listing]) -> Listed:
    """Returns the content of listings as one list of each kind."""
    found, skipped = Listed([], [], {}, []), collections.Counter[str]()
    for each in listings:
        refs = elements.unpack_refs(each.packed_refs)
        assert len(refs) == each.num_refs
        found.refs.extend(refs)
        found.rejects.extend(each.rejects)
        found.problems.extend(each.problems)
        skipped.update(each.skipped)
    return found._replace(skipped=dict(skipped))


def list_both_ways(source: image_source.RowSource) -> list[image_source.Listing]:
    """Returns the listings of a source, after a check that they are the same if its rows are looked up elsewhere."""
    found = list(source.list_all())
    elsewhere = pickle.loads(pickle.dumps(source))
    spread = [
        elsewhere.look_up(pickle.loads(pickle.dumps(each))) if isinstance(each, image_source.RowBatch) else each
        for each in source.list_rows()
    ]
    assert spread == found
    return found
