from __future__ import annotations

import gzip
import json

from hypothesis import given
from hypothesis import strategies as st

from imagebeam import catalog as catalog_lib
from imagebeam.transforms import elements
from imagebeam.transforms.snapshots import image_states
from tests import error_texts
from tests.unit.transforms.test_elements import FULL

TEXTS = st.text(max_size=5) | st.just("\udcff.jpg")
FACTS = st.binary(min_size=16, max_size=16)
CONTENTS = st.just(b"") | st.binary(min_size=24, max_size=24).filter(any)
SIZES = st.integers(1, 1 << 20)
SUMS = st.tuples(SIZES, st.tuples(SIZES, SIZES, SIZES), st.tuples(SIZES, SIZES, SIZES))
MEASURES = st.builds(
    elements.Measures,
    st.just("jpeg"),
    st.just("RGB"),
    st.integers(1, 8),
    SIZES,
    SIZES,
    SIZES,
    TEXTS,
    TEXTS,
    TEXTS,
    st.none() | SUMS,
)
IMAGES = st.builds(
    image_states.ImageState,
    TEXTS,
    FACTS,
    st.integers(-1, 1 << 40),
    st.integers(0, 9),
    st.lists(TEXTS, max_size=2).map(tuple),
    MEASURES,
    CONTENTS,
)
REJECTS = st.builds(
    image_states.RejectState,
    FACTS,
    st.builds(
        elements.Reject, TEXTS, TEXTS, st.sampled_from(["read", "check"]), st.sampled_from(elements.Reason), TEXTS
    ),
    st.sampled_from(["train", "test"]),
    SIZES,
    st.integers(0, 9),
    CONTENTS,
)


@given(st.lists(IMAGES, max_size=4), st.lists(REJECTS, max_size=3))
def test_state_comes_back_as_it_was_stored(
    images: list[image_states.ImageState], rejects: list[image_states.RejectState]
) -> None:
    state = image_states.ShardState(images, rejects)
    data = image_states.encode_state(state)
    assert image_states.decode_state(data, len(images), "x") == state
    assert image_states.encode_state(image_states.ShardState(images, rejects)) == data
    quick = image_states.decode_state(data, len(images), "x", with_measures=False)
    assert quick == image_states.ShardState([each._replace(measures=None) for each in images], rejects)


def change(data: bytes, **fields: object) -> bytes:
    return gzip.compress(json.dumps(json.loads(gzip.decompress(data)) | fields).encode())


MEASURED = elements.Measures("jpeg", "RGB", 1, 8, 9, 512)
STATE = image_states.encode_state(
    image_states.ShardState([image_states.ImageState("a.jpg", b"x" * 16, 9, 0, ("cat",), MEASURED)], [])
)


def test_damaged_state_names_the_file_and_the_remedy() -> None:
    for data in [
        STATE[:-5],
        STATE[:12] + b"?" + STATE[13:],
        b"",
        b"{}",
        gzip.compress(b"[]"),
        change(STATE, keys=["a.jpg", "b.jpg"]),
        change(STATE, facts=""),
        change(STATE, rejects=[["a"]]),
        change(STATE, contents="YQ=="),
        change(STATE, measures="[]"),
    ]:
        with error_texts.raises("snapshot-states-damaged"):
            image_states.decode_state(data, 1, "gs://b/s.json.gz")


def test_state_of_a_later_version_is_refused_as_such() -> None:
    with error_texts.raises("snapshot-states-version"):
        image_states.decode_state(change(STATE, format_version=3), 1, "s.json.gz", writer="9.1.0")


def test_state_without_contents_has_no_field_that_earlier_versions_do_not_know() -> None:
    fields = json.loads(gzip.decompress(STATE))
    assert list(fields) == ["keys", "facts", "num_bytes", "positions", "labels", "measures", "rejects"]


def test_stable_fingerprint_covers_what_fingerprints_do_but_versions() -> None:
    stable = image_states.stable_fingerprint_of(FULL, keep_position=True)
    assert FULL.mask is not None
    later = tuple(each._replace(version=each.version + 1) for each in FULL.extra_images)
    newer = FULL._replace(
        version=FULL.version + 1, mask=FULL.mask._replace(version=FULL.mask.version + 1), extra_images=later
    )
    assert image_states.stable_fingerprint_of(newer, keep_position=True) == stable
    assert image_states.fingerprint_of(newer, keep_position=True) != image_states.fingerprint_of(
        FULL, keep_position=True
    )
    larger = FULL._replace(mask=FULL.mask._replace(size=FULL.mask.size + 1))
    fewer = FULL._replace(extra_images=FULL.extra_images[1:])
    for other in (FULL._replace(size=FULL.size + 1), FULL._replace(label="other"), larger, fewer):
        assert image_states.stable_fingerprint_of(other, keep_position=True) != stable
    among_others = FULL._replace(offset=100, length=200, blocks=elements.SnappyBlocks(300, 4))
    assert image_states.stable_fingerprint_of(among_others, keep_position=True) == stable


def test_content_tells_the_bytes_of_image_and_mask_apart() -> None:
    ref = FULL._replace(content=b"8 bytes.")
    files = ([b"ab"], [b"ba"], [b"a", b"b"], [b"b", b"a"], [b"ab", b""])
    contents = [image_states.add_content(ref, *each).content for each in files]
    assert len(set(contents)) == len(files)
    assert {(content[:8], len(content)) for content in contents} == {(b"8 bytes.", image_states.CONTENT_BYTES)}


def test_fingerprint_covers_all_that_a_record_is_made_of_but_folders() -> None:
    fingerprint = image_states.fingerprint_of(FULL, keep_position=True)
    left_out = {
        "key",
        "group",
        "inside",
        "fingerprint",
        "content",
        "replaces",
        "frame",
    }  # the key is what is compared; the group decides the split
    assert FULL.mask is not None
    changes = {field: (value, value) for field, value in FULL._asdict().items()}
    changes["blocks"] = elements.SnappyBlocks(1, 2)
    changes["extra_images"] = FULL.extra_images * 2
    changes |= {"uri": "other.png", "split": "other", "mask": FULL.mask._replace(size=FULL.mask.size + 1)}
    for field, value in changes.items():
        other = image_states.fingerprint_of(FULL._replace(**{field: value}), keep_position=True)
        assert (other == fingerprint) == (field in left_out), field
    moved = FULL._replace(uri=f"/elsewhere/{FULL.uri.rpartition('/')[2]}")
    assert image_states.fingerprint_of(moved, keep_position=True) == fingerprint
    later = FULL._replace(position=FULL.position + 1)
    assert image_states.fingerprint_of(later, False) == image_states.fingerprint_of(FULL, False)


def test_state_lies_beside_the_shard() -> None:
    for shard, name in [
        ("train-00000-of-00002.tfrecord", "state/train-00000-of-00002.json.gz"),
        ("../000001/train-00000-of-00002.tfrecord.gz", "../000001/state/train-00000-of-00002.json.gz"),
    ]:
        assert catalog_lib.Shard(shard, 1, 1, 1).state_name == name


def test_name_of_rejects_tells_the_snapshot() -> None:
    name = image_states.rejects_name(12)
    assert image_states.is_rejects_name(name)
    assert image_states.snapshot_of_rejects(name) == 12
