"""Damaged manifests must give rejects, problems and config errors, and nothing else."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from imagebeam import errors, example, features
from imagebeam.transforms import elements
from imagebeam.transforms.formats.tables import manifest
from imagebeam.transforms.images import structure
from imagebeam.transforms.shard import encode
from imagebeam.transforms.sources import reference_rules, table_rows
from tests import image_sets

PNG = image_sets.make_image(1, "PNG")
CSV = """image,tags,bald,age,caption,xs,set
a.jpg,cat|dog,1,30,"A cat, and a dog",0.5 1,train
a.jpg,owl,1,30,\N{CAT FACE},,train\r
b.jpg,,-1,7,x,,test
b.jpg,cat,-1,7,"a ""b"" c",1e-3,test
""".encode()
JSONL = b"""{"image": "a.jpg", "tags": ["cat", "dog"], "bald": 1, "age": 30, "caption": ["x", "y"], "xs": [0.5, 1]}
{"image": "a.jpg", "tags": "owl", "bald": true, "age": "30", "caption": "z", "xs": [], "set": null}
{"image": "b.jpg", "tags": null, "bald": 0, "age": 7.0, "caption": [], "xs": 1e-3, "set": "test"}
"""
TOKENS = [
    *(b'"', b",", b"\n", b"\r", b"|", b" ", b"\0", b"\xff", b"\xef\xbb\xbf", b"\\", b"\\ud800", b"\\u0000", b"[", b"]"),
    *(b"{", b"}", b"null", b"NaN", b"Infinity", b"-1", b"1e999", b"9" * 40, b"true", b'{"image": 1}', b"[[["),
    *(b"..", b"/", b"file://x/", b"gs://", b"image", b"a.jpg", b"b.jpg", b"\xe2\x80\xa8", b"\x85", b"\f", b"x" * 300),
]
EDITS = st.lists(
    st.tuples(st.integers(0, 400), st.integers(0, 12), st.sampled_from(TOKENS) | st.binary(max_size=3)),
    min_size=1,
    max_size=6,
)
FIELDS = {
    "separator": {"label": "tags", "label_separator": "|"},
    "flags": {"label_flags": ("bald",)},
    "one": {"label": "tags"},
}
COLUMNS = (
    table_rows.Column("age", features.INT64, missing="default", default=-1),
    table_rows.Column("caption", features.BYTES, many=True),
    table_rows.Column("xs", features.FLOAT, many=True, separator=" "),
)
RECIPE_FEATURES = tuple(
    features.Feature(f"columns/{column.name}", f"columns/{column.name}", column.kind, column.many) for column in COLUMNS
)


def mutate(data: bytes, edits: list[tuple[int, int, bytes]]) -> bytes:
    """Replaces pieces of `data`."""
    for place, length, token in edits:
        place %= len(data) + 1
        data = data[:place] + token + data[place + length :]
    return data


def write_images(folder: pathlib.Path) -> None:
    for name in ("a.jpg", "b.jpg"):
        (folder / name).write_bytes(PNG)


def follow(source: manifest.ManifestSource) -> None:
    """Lists the source and serializes its examples."""
    try:
        source.check_columns()
    except errors.ConfigError:
        return
    rule = reference_rules.LabelRule(by="column")
    image = structure.check_image(PNG)
    for found in source.list_all():
        assert all(isinstance(problem, str) for problem in found.problems)
        for reject in found.rejects:
            assert reject.key and reject.detail and isinstance(reject.reason, elements.Reason)
        for ref in elements.unpack_refs(found.packed_refs) if found.num_refs else ():
            try:
                ref = rule.apply(ref)
            except table_rows.BadRowError as e:
                assert e.detail
                continue
            ids = {name: index for index, name in enumerate(sorted(ref.classes))}
            known = (
                features.Feature("label", features.LABEL, features.INT64, isinstance(ref.label, tuple)),
                *RECIPE_FEATURES,
            )
            recipe = encode.ExampleRecipe(known, ids, tuple(feature.source for feature in RECIPE_FEATURES))
            parsed = example.parse_example(b"".join(recipe.encode(ref, image)))
            assert len(parsed["columns/age"]) == 1
            assert len(parsed["columns/xs"]) == len(ref.columns[2])
            assert all(number == number and abs(number) < 1e39 for number in parsed["columns/xs"])
            assert parsed["columns/caption"] == list(ref.columns[1])


@pytest.mark.parametrize("fields", FIELDS.values(), ids=FIELDS)
@pytest.mark.parametrize(("data", "manifest_format"), [(CSV, "csv"), (JSONL, "jsonl")], ids=["csv", "jsonl"])
@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[
        HealthCheck.function_scoped_fixture,
        HealthCheck.too_slow,
    ],  # the images are the same for all
)
@given(edits=EDITS, merge_rows=st.booleans())
def test_damaged_manifest_gives_only_rejects_problems_and_config_errors(
    tmp_path: pathlib.Path,
    data: bytes,
    manifest_format: str,
    fields: dict[str, Any],
    edits: list[tuple[int, int, bytes]],
    merge_rows: bool,
) -> None:
    write_images(tmp_path)
    table = tmp_path / f"m.{manifest_format}"
    table.write_bytes(mutate(data, edits))
    known = table_rows.RowFields(split="set", columns=COLUMNS, **fields)
    follow(manifest.ManifestSource(str(table), manifest_format, fields=known, merge_rows=merge_rows))
