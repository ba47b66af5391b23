"""Checks that a table is listed the same in one place and spread over workers."""

from __future__ import annotations

import pickle

from imagebeam.transforms.sources import image_source


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
