from __future__ import annotations

import collections
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagebeam import catalog as catalog_lib
from imagebeam.transforms import elements, summaries
from imagebeam.transforms.updates import compare_with_snapshot
from imagebeam.transforms.updates.compare_with_snapshot import KnownImage

KEYS = st.sampled_from([f"{letter}.jpg" for letter in "abcdefgh"])
FINGERPRINTS = st.sampled_from([b"1", b"2", b"3"])
SPLITS = st.sampled_from(["train", "test"])
REJECTS = st.builds(
    lambda key, fingerprint, snapshot: KnownImage(
        key,
        fingerprint,
        snapshot,
        snapshot,
        -1,
        "train",
        (),
        elements.Reject(key, "uri", "check", elements.Reason.TRUNCATED, ""),
    ),
    KEYS,
    FINGERPRINTS,
    st.integers(1, 3),
)


@st.composite
def known_sets(draw: st.DrawFn) -> list[KnownImage]:
    """Returns one record or none of each key, and rejects of any, at most one of a key in a snapshot."""
    recorded = draw(st.dictionaries(KEYS, st.tuples(FINGERPRINTS, SPLITS), max_size=8))
    images = [
        KnownImage(key, fingerprint, 1, index % 3, index, split, (key[0],), None)
        for index, (key, (fingerprint, split)) in enumerate(recorded.items())
    ]
    rejects = {(each.key, each.snapshot): each for each in draw(st.lists(REJECTS, max_size=6))}
    return draw(st.permutations([*images, *rejects.values()]))


@st.composite
def listings(draw: st.DrawFn) -> list[elements.ImageRef]:
    fingerprint = draw(st.dictionaries(KEYS, st.tuples(FINGERPRINTS, SPLITS), max_size=8))
    return [
        elements.ImageRef(key, f"/in/{key}", split=split, fingerprint=each)
        for key, (each, split) in fingerprint.items()
    ]


@given(listings(), known_sets())
def test_each_image_is_read_kept_or_removed(listed: list[elements.ImageRef], known: list[KnownImage]) -> None:
    compared = compare_with_snapshot.compare(compare_with_snapshot.find_others(listed, known))
    records = {each.key: each for each in known if each.record >= 0}
    rejects = {
        key: max((each for each in known if each.key == key), key=lambda each: each.snapshot)
        for key in {each.key for each in known} - records.keys()
    }
    now = {ref.key: ref for ref in listed}
    read = {
        key: ref
        for key, ref in now.items()
        if (key not in records or records[key].fingerprint != ref.fingerprint)
        and (key in records or key not in rejects or rejects[key].fingerprint != ref.fingerprint)
    }
    assert {ref.key: ref._replace(replaces="") for ref in compared.images} == read
    assert {ref.key: ref.replaces for ref in compared.images if ref.replaces} == {
        key: records[key].split for key in read.keys() & records.keys()
    }
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
    compared = compare_with_snapshot.compare_with_rejects(listed, known)
    now = {ref.key for ref in listed}
    assert {ref.key for ref in compared.images} == now & rejects
    assert {reject.key for reject in compared.rejects} == rejects - now
    assert compared.removed == {}
    assert compared.comparison.totals()["unchanged"] == sum(each.record >= 0 for each in known)


def test_key_that_is_listed_twice_is_named_with_both_files() -> None:
    listed = [elements.ImageRef("a.jpg", "/in/2", position=2), elements.ImageRef("a.jpg", "/in/1", position=1)]
    comparison = compare_with_snapshot.compare(compare_with_snapshot.find_others(listed, [])).comparison
    assert comparison.duplicates == (summaries.RepeatedKey("a.jpg", ("/in/1", "/in/2"), (1, 2)),)
    assert comparison.num_duplicates == 1


STABLE, OTHER_STABLE = b"as it is", b"another!"
BYTES, OTHER_BYTES = b"1" * 16, b"2" * 16
REJECT = elements.Reject("a.jpg", "/in/a.jpg", "check", elements.Reason.CORRUPT, "")


@pytest.mark.parametrize("is_reject", [False, True], ids=["record", "reject"])
@pytest.mark.parametrize(
    ("fingerprint", "version", "stable", "content", "known", "reads", "is_same"),
    [
        pytest.param(b"1", 5, STABLE, BYTES, STABLE + BYTES, False, True, id="same-version"),
        pytest.param(b"2", 6, STABLE, BYTES, STABLE + BYTES, True, True, id="touched"),
        pytest.param(b"2", 6, STABLE, OTHER_BYTES, STABLE + BYTES, True, False, id="same-size-other-bytes"),
        pytest.param(b"2", 6, STABLE, None, STABLE + BYTES, True, False, id="cannot-be-read"),
        pytest.param(b"2", 5, OTHER_STABLE, BYTES, STABLE + BYTES, False, False, id="other-label"),
        pytest.param(b"2", 6, STABLE, BYTES, b"", False, False, id="state-without-content"),
        pytest.param(b"1", 5, STABLE, BYTES, b"", False, True, id="state-without-content-same-version"),
        pytest.param(b"1", 0, STABLE, BYTES, STABLE + BYTES, True, True, id="no-version"),
        pytest.param(b"1", 0, STABLE, OTHER_BYTES, STABLE + BYTES, True, False, id="no-version-other-bytes"),
        pytest.param(b"1", 0, STABLE, BYTES, b"", False, False, id="no-version-no-content"),
    ],
)
def test_bytes_are_read_only_where_they_decide(
    fingerprint: bytes,
    version: int,
    stable: bytes,
    content: bytes | None,
    known: bytes,
    reads: bool,
    is_same: bool,
    is_reject: bool,
) -> None:
    ref = elements.ImageRef(
        "a.jpg", "/in/a.jpg", version=version, split="train", fingerprint=fingerprint, content=stable
    )
    reject = REJECT if is_reject else None
    row = KnownImage("a.jpg", b"1", 1, 0, -1 if is_reject else 0, "train", ("cat",), reject, known)
    read: list[elements.ImageRef] = []

    def read_contents(refs: Iterable[elements.ImageRef]) -> list[elements.ImageRef]:
        read.extend(refs)
        return [each if content is None else each._replace(content=each.content + content) for each in read]

    others = compare_with_snapshot.find_others([ref], [row], by_content=True)
    compared = compare_with_snapshot.compare(others, read_contents)
    assert read == ([ref] if reads else [])
    assert compared.comparison.compared_contents == len(read)
    assert compared.comparison.same_contents == (reads and is_same)
    assert len(compared.images) == (not is_same)
    assert compared.rejects == ([REJECT] if is_reject and is_same else [])
    totals = compared.comparison.totals()
    assert totals["unchanged"] == (is_same and not is_reject)
    assert totals["changed"] + totals["added"] == (not is_same)


def test_rejected_images_are_counted_as_rejected_and_not_as_added() -> None:
    comparison = summaries.Comparison({"train": 9}, {"train": 4, "test": 1}, {"train": 3}, {"test": 1})
    shard = catalog_lib.Shard("x", 1, 1, 1)
    written = [
        elements.WrittenShard("train", shard, {"corrupt": 3}, {}, lost={"train": 1, "test": 1}),
        elements.WrittenShard("test", shard, {"truncated": 1}, {}),
    ]
    found = comparison.after_reading(written)
    assert (found.added, found.changed) == ({"train": 3}, {"train": 1})
    assert (found.removed, found.rejected) == ({"test": 2, "train": 1}, {"train": 3, "test": 1})
    assert found.num_known == comparison.num_known
