from __future__ import annotations

import pathlib
import re
from collections.abc import Iterator
from typing import Any

import pytest

from imagebeam import errors
from imagebeam.pipelines.config import model as config_lib
from imagebeam.pipelines.config import output_sections
from tests import case_tables, error_texts

HASH = {"by": "hash", "fractions": {"train": 0.5, "test": 0.5}}
MANIFEST = {"by": "manifest"}
PATTERN = r"(?P<label>cat|dog)\.\d+\.jpg"
PATHS = {"pattern": "(?P<x>.*)"}
AGE = {"type": "float", "transform": "z_score"}
BEAM = {"uri": "out", "writer": "beam", "num_shards": 2}


def parse(**sections: Any) -> config_lib.Config:
    return config_lib.parse_config(sections, where="a test")


def keys(config: config_lib.Config) -> dict[str, str]:
    return {feature.key: feature.source for feature in config.resolve_features()}


# --- defaults and presets --------------------------------------------------------------------------------------------


def test_list_of_recipes_has_every_preset_once() -> None:
    page = (pathlib.Path(__file__).parents[4] / "docs" / "recipes" / "README.md").read_text("utf-8")
    heads = re.findall(r"^- \[\w+\]\(\w+\.md\): (.*?); source: ", page, re.MULTILINE | re.DOTALL)
    assert sorted(name for head in heads for name in re.findall(r"`(\w+)`", head)) == config_lib.preset_names()


@case_tables.each_case(
    "preset, name, label",
    {
        "cats-dogs": ("cats_dogs", "cat.0.jpg", "cat"),
        "imagenet-words": ("imagenet_files", "n01440764_tench.JPEG", "n01440764"),
        "imagenet-numbers": ("imagenet_files", "n01440764_18.JPEG", "n01440764"),
    },
)
def test_pattern_of_preset_finds_label(preset: str, name: str, label: str) -> None:
    match = re.fullmatch(config_lib.load_config(preset).label.pattern or "", name)
    assert match is not None
    assert match["label"] == label


# --- reading ---------------------------------------------------------------------------------------------------------


def test_load_config_of_yaml_file_reads_it(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text("output: {num_shards: 4, target_shard_bytes: null}\nsource: {include: '*.jpg'}\n")
    config = config_lib.load_config(str(path))
    assert config.output.num_shards == 4
    assert config.source.include == ("*.jpg",)


def test_load_config_of_empty_yaml_file_is_all_defaults(tmp_path: pathlib.Path) -> None:
    (tmp_path / "empty.yaml").write_text("# nothing yet\n")
    assert config_lib.load_config(str(tmp_path / "empty.yaml")) == config_lib.Config()


@case_tables.each_case(
    "content, code",
    [
        (b"output: [", "config-not-yaml"),
        (b"- output\n", "config-no-mapping"),
        (b"\xff\xfe", "config-not-utf8"),
        (b"otput: {}\n", "config-invalid"),
    ],
)
def test_load_config_of_unusable_file_raises_config_error(tmp_path: pathlib.Path, content: bytes, code: str) -> None:
    (tmp_path / "own.yaml").write_bytes(content)
    with error_texts.raises(code):
        config_lib.load_config(str(tmp_path / "own.yaml"))


@case_tables.each_case("name", ["image_foldr", "x", "/"])
def test_load_config_of_unknown_name_lists_the_presets(name: str) -> None:
    with error_texts.raises("config-unknown"):
        config_lib.load_config(name)


# --- overrides -------------------------------------------------------------------------------------------------------


@case_tables.each_case(
    "override, section, key, value",
    [
        ("output.num_shards=16", "output", "num_shards", 16),
        ("output.num_shards.train=8", "output", "num_shards", {"train": 8}),
        ("output.num_shards={train: 8}", "output", "num_shards", {"train": 8}),
        ("source.uri=gs://b/x?a=1&b=2", "source", "uri", "gs://b/x?a=1&b=2"),
        ("source.include=**/*.jpg", "source", "include", ("**/*.jpg",)),
        ("source.include=[ab]*.jpg", "source", "include", ("[ab]*.jpg",)),
        ("source.include=[a.jpg, b.jpg]", "source", "include", ("a.jpg", "b.jpg")),
        ("label.vocabulary=", "label", "vocabulary", None),
        ('output.suffix=""', "output", "suffix", ""),
    ],
)
def test_override_is_read_as_yaml_or_text(override: str, section: str, key: str, value: object) -> None:
    config = config_lib.load_config(None, [override])
    assert getattr(getattr(config, section), key) == value


@case_tables.each_case(
    "pattern",
    [
        r"(?P<label>cat|dog)\.\d+\.jpg",
        r"[a-z]+_(?P<label>\w+)\.png",
        r"(?P<label>[^=]+)=\d+\.jpg",
        r".{3}(?P<label>x{1,2})",
    ],
)
def test_override_of_regular_expression_needs_no_quotes(pattern: str) -> None:
    config = config_lib.load_config(None, ["label.by=filename", f"label.pattern={pattern}"])
    assert config.label.pattern == pattern


def test_overrides_go_on_top_of_the_preset_in_their_order() -> None:
    config = config_lib.load_config("cats_dogs", ["output.num_shards=2", "output.num_shards=3"])
    assert config.output.num_shards == 3
    assert config.label.pattern == PATTERN


def test_override_of_feature_reaches_a_key_with_slashes() -> None:
    assert "image_raw" in keys(config_lib.load_config(None, ["features.image/encoded=image_raw"]))


@case_tables.each_case(
    "override, code",
    [
        ("output.num_shards", "set-form"),
        ("=3", "set-form"),
        ("output.num_shard=3", "config-invalid"),
        ("output=3", "config-invalid"),
        ("resize=64", "config-invalid"),
        ("resize=[64, 64]", "config-invalid"),
        ("image.resize=64", "config-invalid"),
        ("image.limit.max_side=3", "config-invalid"),
        ("image.limit.x=3", "config-invalid"),
        ("limits.maxside=3", "config-invalid"),
        ("by=hash", "config-invalid"),
        ("zzz=1", "config-invalid"),
        ("split.by=hash", "config-invalid"),
        ("split.by=index", "config-invalid"),
    ],
)
def test_override_that_fits_nowhere_is_refused(override: str, code: str) -> None:
    with error_texts.raises(code):
        config_lib.load_config(None, [override])


def test_override_with_backslashes_in_double_quotes_is_refused() -> None:
    with pytest.raises(errors.ConfigError, match="use single quotes around texts"):
        config_lib.load_config(None, ['source.masks={image: "a\\."}'])


def test_override_below_a_value_raises_config_error() -> None:
    with error_texts.raises("set-below-value"):
        config_lib.load_config(None, ["output=3", "output.uri=x"])


# --- what is refused -------------------------------------------------------------------------------------------------


@case_tables.each_case(
    "sections",
    [
        {"otput": {}},
        {"label": {"patern": "x"}},
        {"source": {**MANIFEST, "manifest": {"pth": "x"}}},
        {"source": MANIFEST, "columns": {"age": {"typ": "int"}}},
        {"rejects": {"xyz": 1}},
        {"output": 5},
        {"columns": []},
        {"source": {"include": 5}},
        {"label": {"base": 2}},
        {"image": {"check": "full"}},
        {"image": {"dtype": "float32", "encode": "jpeg"}},
        {"image": {"dtype": "float32"}},
        {"image": {"dtype": "uint16", "encode": "webp"}},
        {"image": {"dtype": "float32", "encode": "raw", "range": [0, 1]}},
        {"image": {"range": [5, 5]}},
        {"image": {"range": [0, float("inf")]}},
        {"image": {"range": [0, 4095], "white_level": 4095}},
        {"image": {"range": [0, 4095], "encode": "int64_list"}},
        {"image": {"dtype": "uint16", "color": "gray"}},
        {"image": {"bands": []}},
        {"image": {"bands": [0]}},
        {"image": {"bands": [1, 2]}},
        {"image": {"bands": "all"}},
        {"image": {"dtype": "uint16"}, "statistics": {"pixels": True}},
        {"image": {"bands": [1, 2], "encode": "raw"}, "duplicates": {"near": "report"}},
        {"features": {"image/dtype": "dtype"}},
        {"split": {"seed": 2**63}},
        {"split": HASH | {"fractions": {"a": 1.0}}},
        {"rejects": {"max_fraction": 2}},
        {"output": {"name": "1x"}},
        {"output": {"suffix": "x"}},
        {"output": {"num_shards": 0}},
        {"output": {"num_shards": {"train": 0}}},
        {"output": {"target_shard_bytes": 0}},
        {"output": {"target_shard_bytes": "1 x"}},
        {"features": {"image/key": ""}},
        {"split": {"by": "directory", "names": []}},
        {"label": {"by": "filename"}},
        {"label": {"by": "filename", "pattern": "("}},
        {"label": {"by": "filename", "pattern": "x"}},
        {"label": {"pattern": PATTERN}},
        {"label": {"by": "column"}},
        {"label": {"column": "x"}},
        {"label": {"type": "int"}},
        {"label": {"by": "none", "base": 1}},
        {"label": {"by": "none", "vocabulary": "x"}},
        {"label": {"by": "column", "column": "x"}},
        {"split": {"by": "hash"}},
        {"split": {"fractions": {"a": 0.5}}},
        {"split": {"by": "column"}},
        {"split": {"by": "hash", "fractions": {"a": 0.5, "b": 0.4}}},
        {"split": {"holdout": {"dev": {"split": "dev", "first": 1}}}},
        {"split": {"by": "source", "names": ["train", "test"], "holdout": {"dev": {"split": "trian", "first": 1}}}},
        {"split": {"stratify": True}},
        {"split": {"group": "x"}},
        {"split": HASH | {"rename": {"val": "test"}}},
        {"split": {"names": ["train"]}},
        {"split": HASH | {"name": "all"}},
        {"split": {"name": "a b"}},
        {"split": {"by": "directory", "rename": {"val": "../x"}}},
        {"split": HASH | {"group": "person"}},
        {"split": {"by": "column", "column": "x"}},
        {"columns": {"age": {}}},
        {"source": {"manifest": {"key": "id"}}},
        {"source": {**MANIFEST, "include": "*.jpg"}},
        {"label": {"by": "none"}, "split": HASH | {"stratify": True}},
        {"output": {"num_shards": 1, "examples_per_shard": 3}},
        {"split": HASH, "output": {"num_shards": {"val": 1}}},
        {"output": {"writer": "beam"}},
        {"split": {"by": "directory"}, "output": {"writer": "beam", "num_shards": 1}},
        {"split": HASH, "output": {"writer": "beam", "num_shards": {"train": 1}}},
        {"output": {"writer": "beam", "num_shards": 1, "shuffle": "none"}},
        {"features": {"foo": "x"}},
        {"features": {"image/key": "image/format"}},
        {"source": MANIFEST, "columns": {"image/key": {}}},
        {"image": {"fit": "crop"}},
        {"image": {"enlarge": True}},
        {"image": {"other_formats": "reject", "encode": "png"}},
        {"image": {"background": [0, 0, 256]}},
        {"image": {"limits": {"max_aspect_ratio": 0.5}}},
        {
            "source": {"by": "coco", "coco": {"annotations": {"train": "a.json", "validation": "b.json"}}},
            "image": {"resize": [4, 5], "fit": "pad"},
        },
        {"image": {"encode": "png", "resize": [4, 5], "shortest_side": 4}},
        {"image": {"encode": "png", "resize": [20000, 20000]}},
        {"image": {"encode": "png", "quality": 80}},
        {"image": {"encode": "webp", "color": "gray"}},
        {"image": {"encode": "webp", "webp": "lossless", "quality": 80}},
        {"image": {"frames": "each"}, "duplicates": {"near": "drop"}},
        {"image": {"webp": "source"}},
        {"image": {"encode": "jpeg", "resampler": "pillow"}},
        {"image": {"encode": "jpeg", "quality": 101}},
        {"image": {"encode": "png", "resize": [4]}},
        {"image": {"encode": "png", "resize": [0, 4]}},
        {
            "source": {"by": "files", "masks": {"image": "(.*)\\.jpg", "mask": "\\1.png"}},
            "image": {"encode": "png", "resize": [4, 5]},
        },
        {"source": {"by": "manifest", "manifest": {"further": {"class": "b"}}}},
        {"source": {"by": "manifest", "manifest": {"further": {"after": "{a}{id.jpg"}}}},
        {"source": {"by": "manifest", "manifest": {"trust": True}}, "output": {"target_shard_bytes": "1MiB"}},
        {"source": {"pattern": "(?P<split>.*)"}, "label": {"by": "none"}},
        {"source": PATHS, "columns": {"age": {}}},
        {"source": PATHS, "label": {"by": "column", "column": "kind"}},
        {"source": PATHS, "label": {"by": "columns", "columns": ["a"]}},
        {"source": PATHS, "split": HASH | {"group": "who"}},
        {"source": PATHS | {"by": "tar"}},
        {"split": {"by": "table"}},
        {"split": {"by": "lists"}},
        {"split": {"unlisted": "reject"}},
        {"source": {"manifest": {"image": "{id}/*"}}},
        {"output": {"suffix": ".tfrecord.GZ"}},
        {"output": {"suffix": ".zst", "compression": "gzip"}},
        {"output": {"suffix": ".gz", "compression": "gzip"}},
        {"duplicates": {"exact": "report", "near": "drop"}},
        {"duplicates": {"near_distance": 3}},
        {"duplicates": {"near": "report", "near_distance": 7}},
        {"duplicates": {"keep_in": ["test"]}},
        {"duplicates": {"exact": "drop", "keep_in": ["a", "a"]}},
        {"duplicates": {"exact": "drop", "keep_in": ["a/b"]}},
        {"duplicates": {"exact": "drop", "keep_in": ["tset"]}, "split": HASH},
        {"duplicates": {"exact": "fail"}, "output": BEAM},
        {"duplicates": {"exact": "warn"}},
        {"update": {"drift": {"labels": 1.5}}},
        {"update": {"drift": {"sizes": -1}}},
        {"update": {"drift": {"rejects": True}}},
        {"update": {"drift": {"label": 0.1}}},
        {"source": MANIFEST, "columns": {"age": {"buckets": 3}}},
        {"source": MANIFEST, "columns": {"age": AGE | {"top_k": 3}}},
        {"source": MANIFEST, "columns": {"age": AGE | {"transform": "log", "missing": "default", "default": 0}}},
        {"source": MANIFEST, "columns": {"age": AGE}, "split": {"by": "hash", "fractions": {"a": 0.5, "b": 0.5}}},
        {"output": {"num_shards": [str(n) for n in range(100_000)]}},
    ],
)
def test_config_that_cannot_be_meant_is_refused(sections: dict[str, Any]) -> None:
    with error_texts.raises("config-invalid"):
        parse(**sections)


def test_config_with_several_errors_names_all_of_them() -> None:
    with error_texts.raises("config-invalid"):
        parse(label={"base": 7}, rejects={"max_fraction": -1}, foo=1)


# --- features --------------------------------------------------------------------------------------------------------


def test_features_renamed_and_dropped_are_written_so() -> None:
    config = parse(features={"image/encoded": "image_raw", "image/key": None, "image/class/label": "label"})
    assert keys(config)["image_raw"] == "image/encoded"
    assert keys(config)["label"] == "image/class/label"
    assert {"image/key", "image/encoded", "image/class/label"}.isdisjoint(keys(config))


def test_features_of_columns_have_the_columns_types_and_names() -> None:
    config = parse(source=MANIFEST, columns={"age": {"type": "float"}, "id": {"type": "int"}, "note": {}})
    kinds = {feature.key: feature.kind for feature in config.resolve_features()}
    assert (kinds["age"], kinds["id"], kinds["note"]) == ("float", "int64", "bytes")


@case_tables.each_case(
    "label, kind",
    {
        "class": ({"by": "directory"}, "int64"),
        "int": ({"by": "column", "column": "x", "type": "int"}, "int64"),
        "float": ({"by": "column", "column": "x", "type": "float"}, "float"),
        "none": ({"by": "none"}, None),
    },
)
def test_label_feature_has_the_kind_of_the_label(label: dict[str, Any], kind: str | None) -> None:
    config = parse(source=MANIFEST, label=label)
    kinds = {feature.key: feature.kind for feature in config.resolve_features()}
    assert kinds.get("image/class/label") == kind
    assert ("image/class/text" in kinds) == (config.label.kind == "class")


# --- identity and name -----------------------------------------------------------------------------------------------


@case_tables.each_case(
    "sections",
    {
        "input": {"source": {"uri": "/a"}},
        "output": {"output": {"uri": "/b", "name": "pets"}},
        "vocabulary": {"label": {"vocabulary": "/c/labels.txt"}},
        "rejects": {"rejects": {"max_fraction": 0.5}},
    },
)
def test_identity_ignores_addresses_and_rejects(sections: dict[str, Any]) -> None:
    assert parse(**sections).identity() == parse().identity()


def test_identity_ignores_where_the_manifest_is() -> None:
    elsewhere = parse(source={**MANIFEST, "manifest": {"path": "a.csv"}})
    assert elsewhere.identity() == parse(source=MANIFEST).identity()


@case_tables.each_case(
    "sections",
    {
        "seed": {"split": {"seed": 1}},
        "base": {"label": {"base": 1}},
        "dropped-feature": {"features": {"image/key": None}},
        "renamed-feature": {"features": {"image/key": "id"}},
        "shards": {"output": {"num_shards": 2}},
        "compression": {"output": {"compression": "gzip"}},
        "check": {"image": {"check": "decode"}},
    },
)
def test_identity_tells_what_changes_the_shards(sections: dict[str, Any]) -> None:
    assert parse(**sections).identity() != parse().identity()


@case_tables.each_case(
    "output, name",
    {
        "plain": ("/data/cats_dogs", "cats_dogs"),
        "other-letters": ("/data/cats-and dogs/", "cats_and_dogs"),
        "digits": ("/data/2024", "dataset_2024"),
        "not-ascii": ("/data/кот", "dataset"),
    },
)
def test_default_name_is_usable_by_tfds(output: str, name: str) -> None:
    assert output_sections.OutputConfig(uri=output).dataset == name
    assert output_sections.OutputConfig(name=name).name == name


# --- images that are encoded again -----------------------------------------------------------------------------------


@case_tables.each_case("encode, kind", [("int64_list", "int64"), ("float_list", "float")])
def test_image_as_numbers_is_a_list_of_them(encode: str, kind: str) -> None:
    (image,) = [each for each in parse(image={"encode": encode}).resolve_features() if each.source == "image/encoded"]
    assert (image.kind, image.many) == (kind, True)


def test_place_of_paired_files_is_no_part_of_the_identity() -> None:
    def identity(files: str) -> object:
        return parse(source={"by": "manifest", "manifest": {"image": None, "files": files}}).identity()

    assert identity("*.png") == identity("/elsewhere/*.png")
    assert identity("*.png") != parse(source={"by": "manifest"}).identity()


# --- numbers that are none, suffixes ---------------------------------------------------------------------------------


def _alternatives(field: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield field
    for inner in (*field.get("anyOf", ()), *field.get("oneOf", ())):
        yield from _alternatives(inner)


def numeric_keys(schema: dict[str, Any], model: dict[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Every key that takes a number, and what to give it: `true` in the place of the number."""
    for name, field in model.get("properties", {}).items():
        for part in _alternatives(field):
            if "$ref" in part:
                yield from numeric_keys(schema, schema["$defs"][part["$ref"].rpartition("/")[2]], f"{path}{name}.")
            elif part.get("type") in ("integer", "number") or part.get("enum") == [0, 1]:
                yield f"{path}{name}", True
            elif "prefixItems" in part:
                yield f"{path}{name}", [True] * len(part["prefixItems"])


NUMERIC = dict(numeric_keys(config_lib.Config.model_json_schema(), config_lib.Config.model_json_schema()))


def test_keys_with_numbers_are_found() -> None:
    assert {"output.num_shards", "split.seed", "label.base", "image.resize", "rejects.max_fraction"} <= set(NUMERIC)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *NUMERIC.items(),
        ("output.num_shards", {"train": True}),
        ("split.fractions", {"train": True}),
        ("split.counts", {"train": True}),
        ("split.holdout", {"train": {"split": "x", "first": True}}),
        ("columns", {"x": {"buckets": True}}),
        ("columns", {"x": {"default": True}}),
    ],
)
def test_true_is_not_taken_for_a_number(key: str, value: Any) -> None:
    fields: Any = value
    for part in reversed(key.split(".")):
        fields = {part: fields}
    with error_texts.raises("config-invalid"):
        parse(**fields)


@case_tables.each_case("given", ["output.suffix=", "output.suffix=null", 'output.suffix=""'])
def test_suffix_may_be_nothing(given: str) -> None:
    assert config_lib.load_config(None, [given]).output.suffix == ""


# --- duplicates ------------------------------------------------------------------------------------------------------


def test_drop_goes_with_beams_writer() -> None:
    assert parse(duplicates={"exact": "drop", "near": "drop"}, output=BEAM).duplicates.settings().only("drop").is_on


@case_tables.each_case(
    "one, other, is_same",
    {
        "shards-of-a-refused-run-are-kept": ({"exact": "fail"}, {"exact": "report"}, True),
        "off": ({}, {"near": "off"}, True),
        "a-dataset-without-a-report-is-another-one": ({}, {"exact": "report"}, False),
        "drop": ({"exact": "drop"}, {"exact": "report"}, False),
        "distance": ({"near": "report"}, {"near": "report", "near_distance": 2}, False),
        "order": ({"exact": "drop"}, {"exact": "drop", "keep_in": ["test"]}, False),
    },
)
def test_identity_is_that_of_known_duplicates(one: dict[str, Any], other: dict[str, Any], is_same: bool) -> None:
    split = {"by": "directory"}
    found = [parse(duplicates=each, split=split).identity() for each in (one, other)]
    assert (found[0] == found[1]) is is_same
