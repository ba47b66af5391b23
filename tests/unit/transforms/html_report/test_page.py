from __future__ import annotations

import base64
import hashlib
import re
from typing import Any

import pytest

from imagebeam import catalog as catalog_lib
from imagebeam import features
from imagebeam.transforms.html_report import facts, page, reject_examples, sample_records, style, thumbnails
from tests import pictures
from tests.unit.transforms.html_report import test_markup

HOSTILE = [
    "<script>alert(1)</script>",
    "\"><img src=x onerror='x'>",
    "\u202eevil",
    "x" * 10_000,
    "caf\udce9",
    "]]>-->",
    "",
]
JPEG = pictures.encode(pictures.photo(96, 64))


def make(
    labels: list[str] | None = None, picture: bytes = b"\xff\xd8", num_splits: int = 2, **more: Any
) -> facts.Facts:
    labels = HOSTILE if labels is None else labels
    splits = {
        f"split {number}{HOSTILE[number % 2]}": catalog_lib.Split(
            (catalog_lib.Shard(f"{number}", 10**9, 10**12, 0, removed=number),)
        )
        for number in range(num_splits)
    }
    catalog = catalog_lib.Catalog(
        name=HOSTILE[0],
        fingerprint="f" * 32,
        compression="none",
        splits=splits,
        labels=tuple(labels),
        label_kind="class",
        label_base=0,
        features=(
            *features.resolve_features({}, "class", {}),
            features.Feature(HOSTILE[1], "columns/x", "float", True),
        ),
        config={"source": {"uri": "gs://b/" + HOSTILE[1]}, "output": {"uri": "/secret/place"}, "long": "y" * 10**6}
        | {f"key{n}": HOSTILE[0] * 9 for n in range(1000)},
        duplicates={"exact": {}, "near": {HOSTILE[0]: {HOSTILE[1]: 3}}},
        counts=catalog_lib.Counts(10**10, 10**10 - 3, {"truncated": 3, HOSTILE[0]: 1}, {HOSTILE[0]: 5}),
        versions={"imagebeam": "1", HOSTILE[0]: HOSTILE[1]},
        created="2026-01-01T00:00:00+00:00",
        snapshot={"name": "000002", "base": "000001"},
    )
    counted = {label: number + 1 for number, label in enumerate(labels)}
    table = {
        "labels": counted,
        "formats": counted,
        "reencoded": {"gif to png": 37, HOSTILE[0]: 1},
        "aspect_ratio": {"<0.5": 3},
    }
    shot = thumbnails.Thumbnail(picture, 64, 96, HOSTILE[1], HOSTILE[3], "9 x 9")
    broken = shot._replace(data=b"", problem=HOSTILE[0])
    samples = {name: sample_records.SplitSamples((shot, broken) * 12, (HOSTILE[0],)) for name in list(splits)[:12]}
    drift = {"difference": 0.2, "by_chance": None, "threshold": 0.1, "exceeds": True}
    known: dict[str, Any] = {
        "statistics": dict.fromkeys(splits, table) | {"turned": {"90": 4}},
        "samples": samples,
        "rejects": {HOSTILE[0]: [reject_examples.RejectExample(HOSTILE[3], HOSTILE[1], HOSTILE[0])] * 3},
        "changes": {"splits": {HOSTILE[0]: {"added": 5}}, "drift": {"labels": {HOSTILE[0]: drift}}},
        "duplicates": [
            {"kind": "near", "distance": 3, "key": HOSTILE[0], "split": HOSTILE[1], "first_key": HOSTILE[3]}
        ],
        "notes": (HOSTILE[0],),
    }
    return facts.Facts(catalog, **{**known, **more})


def test_hostile_texts_add_no_element_and_no_address() -> None:
    content = page.render(make())
    found = test_markup.Events(content.decode())
    assert "script" not in found.tags and "iframe" not in found.tags
    names = {name for name, _ in found.attributes}
    assert not any(name.startswith("on") for name in names) and "style" not in names
    for name, value in found.attributes:
        if name in ("href", "src"):
            assert value is not None and re.match(r"#[a-z]+$|data:,$|data:image/jpeg;base64,", value)
    assert b"/secret/place" not in content and b"2026-01" not in content
    assert HOSTILE[0] in "".join(found.texts)


def test_sections_and_links_to_them_are_the_same() -> None:
    found = test_markup.Events(page.render(make()).decode())
    ids = [value for name, value in found.attributes if name == "id"]
    links = [value[1:] for name, value in found.attributes if name == "href" and value and value.startswith("#")]
    assert links == [
        "overview",
        "pictures",
        "labels",
        "images",
        "rejects",
        "duplicates",
        "changes",
        "features",
        "origin",
    ]
    assert len(ids) == len(set(ids)) and set(links) <= set(ids)


def test_policy_allows_the_style_sheet_of_the_page_and_nothing_else() -> None:
    content = page.render(make()).decode()
    sheet = content.split("<style>")[1].split("</style>")[0]
    digest = base64.b64encode(hashlib.sha256(sheet.encode()).digest()).decode()
    assert f"style-src 'sha256-{digest}'" in style.POLICY and style.POLICY.startswith("default-src 'none'; ")
    assert content.count("<style") == 1 and content.index(style.POLICY) < content.index("<style")


@pytest.mark.parametrize(("num_labels", "num_splits"), [(1_000, 3), (22_000, 3), (200, 400)])
def test_page_of_a_large_dataset_is_below_one_megabyte(num_labels: int, num_splits: int) -> None:
    labels = [f"{number} {HOSTILE[number % len(HOSTILE)]}" for number in range(num_labels)]
    content = page.render(make(labels, b"x" * 20_000, num_splits))
    assert len(content) < 1_000_000
    assert b"left out: the page would become too large" in content


@pytest.mark.parametrize(
    "more",
    [
        {"statistics": {}},
        {"statistics": {"split 0" + HOSTILE[0]: None, "x": [], "turned": {"a": "b"}}},
        {"statistics": {"split 0" + HOSTILE[0]: {"labels": {"a": None}, "height": {"min": 1}, "formats": 3}}},
        {"samples": {}, "rejects": {}, "duplicates": (), "notes": ()},
        {"duplicates": [{}]},
        {"changes": {"splits": 3, "drift": {"labels": 4}}},
        {"changes": {}},
    ],
)
def test_facts_that_are_missing_or_have_another_shape_are_left_out(more: dict[str, Any]) -> None:
    test_markup.Events(page.render(make(**more)).decode())


def test_tables_that_a_step_has_added_are_shown() -> None:
    content = page.render(make()).decode()
    assert "Re-encoded, and why" in content and "gif to png" in content and "Turned upright" in content


def test_shares_of_images_that_were_changed_are_of_all_images() -> None:
    counted = {
        "formats": {"jpeg": 900, "png": 100},
        "orientations": {"6": 250},
        "turned": {"5": 100, "8": 20, "90": 5},
        "reencoded": {"gif to png": 50},
    }
    name = "split 0" + HOSTILE[0]
    cells = list(filter(str.strip, test_markup.Events(page.render(make(statistics={name: counted})).decode()).texts))

    def row_of(name: str) -> list[str]:
        start = cells.index(name)
        return cells[start : start + 3]

    assert row_of("png") == ["png", "100", "10.0 %"]
    assert row_of("turned by 90 degrees clockwise") == ["turned by 90 degrees clockwise", "250", "25.0 %"]
    assert row_of("turned by 90 degrees clockwise and mirrored")[1:] == ["100", "10.0 %"]
    assert row_of("turned by 90 degrees counterclockwise")[1:] == ["20", "2.0 %"]
    assert row_of("90")[1:] == ["5", "0.5 %"]  # no code of EXIF
    assert row_of("gif to png")[1:] == ["50", "5.0 %"]
    assert cells.count("share of all") == 3
