from __future__ import annotations

import collections

from hypothesis import given
from hypothesis import strategies as st

from imagebeam.transforms import compare_images, elements, summaries
from imagebeam.transforms.compare_images import KnownImage

KEYS = st.sampled_from([f"{letter}.jpg" for letter in "abcdefgh"])
FACTS = st.sampled_from([b"1", b"2", b"3"])
SPLITS = st.sampled_from(["train", "test"])
REJECTS = st.builds(
    lambda key, facts, snapshot: KnownImage(
        key,
        facts,
        snapshot,
        snapshot,
        -1,
        "train",
        (),
        elements.Reject(key, "uri", "check", elements.Reason.TRUNCATED, ""),
    ),
    KEYS,
    FACTS,
    st.integers(1, 3),
)


@st.composite
def known_sets(draw: st.DrawFn) -> list[KnownImage]:
    """Returns one record or none of each key, and rejects of any, at most one of a key in a snapshot."""
    recorded = draw(st.dictionaries(KEYS, st.tuples(FACTS, SPLITS), max_size=8))
    images = [
        KnownImage(key, facts, 1, index % 3, index, split, (key[0],), None)
        for index, (key, (facts, split)) in enumerate(recorded.items())
    ]
    rejects = {(each.key, each.snapshot): each for each in draw(st.lists(REJECTS, max_size=6))}
    return draw(st.permutations([*images, *rejects.values()]))


@st.composite
def listings(draw: st.DrawFn) -> list[elements.ImageRef]:
    facts = draw(st.dictionaries(KEYS, st.tuples(FACTS, SPLITS), max_size=8))
    return [elements.ImageRef(key, f"/in/{key}", split=split, facts=each) for key, (each, split) in facts.items()]


@given(listings(), known_sets())
def test_each_image_is_read_kept_or_removed(listed: list[elements.ImageRef], known: list[KnownImage]) -> None:
    compared = compare_images.compare(listed, known)
    records = {each.key: each for each in known if each.record >= 0}
    rejects = {
        key: max((each for each in known if each.key == key), key=lambda each: each.snapshot)
        for key in {each.key for each in known} - records.keys()
    }
    now = {ref.key: ref for ref in listed}
    read = {
        key: ref
        for key, ref in now.items()
        if (key not in records or records[key].facts != ref.facts)
        and (key in records or key not in rejects or rejects[key].facts != ref.facts)
    }
    assert {ref.key: ref for ref in compared.images} == read
    unchanged = [key for key in records if key in now and key not in read]
    gone = [records[key] for key in records if key not in unchanged]
    assert sorted((shard, each) for shard, indexes in compared.removed.items() for each in indexes) == sorted(
        (each.shard, each.record) for each in gone
    )
    kept = sorted(key for key in now.keys() & rejects.keys() if key not in read)
    assert sorted(reject.key for reject in compared.rejects) == kept
    totals = compared.comparison.totals()
    assert totals == {
        "added": len(read.keys() - records.keys()),
        "changed": len(read.keys() & records.keys()),
        "removed": len(records.keys() - now.keys()),
        "unchanged": len(unchanged),
    }
    labels = collections.Counter((each.split, label) for each in gone for label in each.labels)
    found = compared.comparison.removed_labels
    assert {(split, label): count for split, each in found.items() for label, count in each.items()} == labels
    assert compared.comparison.num_known == len(records)


@given(listings(), known_sets())
def test_only_rejects_go_on_when_they_are_tried_again(listed: list[elements.ImageRef], known: list[KnownImage]) -> None:
    rejects = {each.key for each in known if each.record < 0}
    compared = compare_images.compare_with_rejects(listed, known)
    now = {ref.key for ref in listed}
    assert {ref.key for ref in compared.images} == now & rejects
    assert {reject.key for reject in compared.rejects} == rejects - now
    assert compared.removed == {}
    assert compared.comparison.totals()["unchanged"] == sum(each.record >= 0 for each in known)


def test_key_that_is_listed_twice_is_named_with_both_files() -> None:
    listed = [elements.ImageRef("a.jpg", "/in/2", position=2), elements.ImageRef("a.jpg", "/in/1", position=1)]
    comparison = compare_images.compare(listed, []).comparison
    assert comparison.duplicates == (summaries.RepeatedKey("a.jpg", ("/in/1", "/in/2"), (1, 2)),)
    assert comparison.num_duplicates == 1
