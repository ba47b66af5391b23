from __future__ import annotations

import pathlib
import re
from collections.abc import Iterator
from typing import Any

import pytest

from imagebeam import errors
from imagebeam.pipelines.config import model as config_lib
from imagebeam.pipelines.config import sections
from tests import case_tables

HASH = {"by": "hash", "fractions": {"train": 0.5, "test": 0.5}}
MANIFEST = {"by": "manifest"}
PATTERN = r"(?P<label>cat|dog)\.\d+\.jpg"


def parse(**sections: Any) -> config_lib.Config:
    return config_lib.parse_config(sections, where="a test")


def keys(config: config_lib.Config) -> dict[str, str]:
    return {feature.key: feature.source for feature in config.resolve_features()}


# --- defaults and presets --------------------------------------------------------------------------------------------


def test_config_of_nothing_suits_a_folder_of_images() -> None:
    config = config_lib.load_config()
    assert (config.source.by, config.source.include) == ("files", ("**/*",))
    assert (config.label.by, config.label.kind, config.label.base) == ("directory", "class", 0)
    assert (config.split.by, config.split.declared, config.split.seed) == ("none", ("train",), 0)
    assert (config.image.encode, config.image.check) == ("keep", "structure")
    assert (config.output.num_shards, config.output.compression, config.output.shuffle) == (None, "none", "hash")
    assert (config.output.writer, config.output.suffix) == ("stream", ".tfrecord")
    assert config.rejects.max_fraction == 0.01


def test_load_config_of_every_preset_gives_a_config() -> None:
    configs = pathlib.Path(__file__).parents[4] / "configs"
    assert config_lib.preset_names() == sorted(path.stem for path in configs.glob("*.yaml"))
    for name in config_lib.preset_names():
        assert isinstance(config_lib.load_config(name), config_lib.Config)


def test_readme_lists_every_preset_once() -> None:
    readme = (pathlib.Path(__file__).parents[4] / "README.md").read_text("utf-8")
    listed = readme.partition("[docs/recipes](docs/recipes/README.md):\n\n")[2].partition("\n\n")[0]
    heads = re.findall("^- (.*?): ", listed, re.MULTILINE)
    assert sorted(name for head in heads for name in re.findall("`(.*?)`", head)) == config_lib.preset_names()


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


def test_imagenet_preset_writes_what_tpu_readers_expect() -> None:
    config = config_lib.load_config("imagenet")
    assert config.label.base == 1
    assert config.split.rename["val"] == "validation"
    assert (config.output.num_shards, config.output.suffix) == ({"train": 1024, "validation": 128}, "")
    assert "image/class/synset" in keys(config)
    assert "image/class/text" in keys(config)


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
    "content, message",
    [
        (b"output: [", r"own\.yaml is not YAML: "),
        (b"- output\n", r"own\.yaml holds a list; a config is a mapping of sections"),
        (b"\xff\xfe", r"own\.yaml is not UTF-8 text: "),
        (b"otput: {}\n", r"config from .*own\.yaml: unknown key 'otput'"),
    ],
)
def test_load_config_of_unusable_file_raises_config_error(tmp_path: pathlib.Path, content: bytes, message: str) -> None:
    (tmp_path / "own.yaml").write_bytes(content)
    with pytest.raises(errors.ConfigError, match=message):
        config_lib.load_config(str(tmp_path / "own.yaml"))


@case_tables.each_case(
    "name, message",
    [
        ("image_foldr", r"neither a YAML file nor a preset \(.*\); did you mean 'image_folder'\?"),
        ("x", r"--config 'x' is neither a YAML file nor a preset \(.*cats_dogs, .*imagenet_files.*\)$"),
        ("/", r"--config '/' is neither a YAML file nor a preset"),
    ],
)
def test_load_config_of_unknown_name_lists_the_presets(name: str, message: str) -> None:
    with pytest.raises(errors.ConfigError, match=message):
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


def test_long_value_is_shortened_in_its_error() -> None:
    with pytest.raises(errors.ConfigError, match=r"output: input should be a mapping, got \['0', '1', .*\.\.\.\]$"):
        config_lib.parse_config({"output": [str(n) for n in range(100_000)]}, "a test")


def test_overrides_go_on_top_of_the_preset_in_their_order() -> None:
    config = config_lib.load_config("cats_dogs", ["output.num_shards=2", "output.num_shards=3"])
    assert config.output.num_shards == 3
    assert config.label.pattern == PATTERN


def test_override_of_feature_reaches_a_key_with_slashes() -> None:
    assert "image_raw" in keys(config_lib.load_config(None, ["features.image/encoded=image_raw"]))


@case_tables.each_case(
    "override, message",
    [
        ("output.num_shards", r"--set 'output.num_shards' does not have the form section.key=value"),
        (
            'source.masks={image: "a\\."}',
            r"--set source\.masks=\{image: .* is not valid YAML \(.*\): use single quotes around texts",
        ),
        ("=3", r"--set '=3' does not have the form section.key=value"),
        ("output.num_shard=3", r"unknown key 'output.num_shard'; did you mean 'num_shards'\?"),
        ("output=3", r"config from the command line: output: input should be a mapping, got 3"),
        (
            "resize=64",
            r"unknown key 'resize'; did you mean 'image\.resize'\? write \[height, width\], such as \[224, 224\]$",
        ),
        ("resize=[64, 64]", r"unknown key 'resize'; did you mean 'image\.resize'\?$"),
        (
            "image.resize=64",
            r"image\.resize: input should be a list, got 64; write \[height, width\], such as \[224, 224\]$",
        ),
        ("image.limit.max_side=3", r"unknown key 'image\.limit'; did you mean 'image\.limits\.max_side'\?$"),
        ("image.limit.x=3", r"unknown key 'image\.limit'; did you mean 'image\.limits'\?$"),
        ("limits.maxside=3", r"unknown key 'limits'; did you mean 'image\.limits\.max_side'\?$"),
        ("by=hash", r"unknown key 'by'; did you mean 'source\.by' or 'label\.by' or 'split\.by'\?$"),
        ("zzz=1", r"unknown key 'zzz'; known are columns, duplicates, "),
        (
            "split.by=hash",
            r"hash and split\.fractions go together, such as split\.fractions: \{train: 0\.9, test: 0\.1\}$",
        ),
        ("split.by=index", r"index and split\.counts go together, such as split\.counts: \{train: 900, test: null\}$"),
    ],
)
def test_override_that_fits_nowhere_raises_config_error(override: str, message: str) -> None:
    with pytest.raises(errors.ConfigError, match=message):
        config_lib.load_config(None, [override])


def test_override_below_a_value_raises_config_error() -> None:
    with pytest.raises(errors.ConfigError, match=r"output\.uri cannot be set to 'x': output is 3, not a mapping"):
        config_lib.load_config(None, ["output=3", "output.uri=x"])


# --- what is refused -------------------------------------------------------------------------------------------------


@case_tables.each_case(
    "sections, message",
    [
        ({"otput": {}}, "unknown key 'otput'; did you mean 'output'?"),
        ({"label": {"patern": "x"}}, "unknown key 'label.patern'; did you mean 'pattern'?"),
        ({"source": {**MANIFEST, "manifest": {"pth": "x"}}}, "unknown key 'source.manifest.pth'; did you mean 'path'?"),
        (
            {"source": MANIFEST, "columns": {"age": {"typ": "int"}}},
            "unknown key 'columns.age.typ'; did you mean 'type'?",
        ),
        ({"rejects": {"xyz": 1}}, "unknown key 'rejects.xyz'; known are max_fraction"),
    ],
)
def test_unknown_key_is_refused_with_the_nearest(sections: dict[str, Any], message: str) -> None:
    with pytest.raises(errors.ConfigError, match=re.escape(message)):
        parse(**sections)


@case_tables.each_case(
    "sections, message",
    {
        "no-mapping": ({"output": 5}, "output: input should be a mapping, got 5"),
        "columns-no-mapping": ({"columns": []}, "columns: input should be a mapping, got []"),
        "include": ({"source": {"include": 5}}, "source.include: input should be a list, got 5"),
        "base": ({"label": {"base": 2}}, "label.base: input should be 0 or 1, got 2"),
        "choice": ({"image": {"check": "full"}}, "image.check: input should be 'header', 'structure', 'dec"),
        "seed": ({"split": {"seed": 2**63}}, "split.seed: input should be less than"),
        "share": ({"split": HASH | {"fractions": {"a": 1.0}}}, "split.fractions.a: input should be less"),
        "rejects": ({"rejects": {"max_fraction": 2}}, "rejects.max_fraction: input should be less"),
        "name": ({"output": {"name": "1x"}}, "output.name: string should match pattern"),
        "suffix": ({"output": {"suffix": "x"}}, "output.suffix: string should match pattern"),
        "no-shards": (
            {"output": {"num_shards": 0}},
            "config from a test: output.num_shards: input should be greater than or equal to 1, got 0",
        ),
        "no-shards-of-a-split": (
            {"output": {"num_shards": {"train": 0}}},
            "config from a test: output.num_shards.train: input should be greater than or equal to 1, got 0",
        ),
        "no-shard-bytes": ({"output": {"target_shard_bytes": 0}}, "output.target_shard_bytes must be at least 1"),
        "byte-unit": (
            {"output": {"target_shard_bytes": "1 x"}},
            "output.target_shard_bytes: could not interpret byte unit: x",
        ),
        "no-key": ({"features": {"image/key": ""}}, "features.image/key: string should have at least 1"),
        "no-split-names": ({"split": {"by": "directory", "names": []}}, "split.names: "),
    },
)
def test_value_out_of_range_is_refused(sections: dict[str, Any], message: str) -> None:
    with pytest.raises(errors.ConfigError, match=re.escape(message)):
        parse(**sections)


@case_tables.each_case(
    "label, message",
    [
        ({"by": "filename"}, "label.by: filename needs label.pattern, such as '(?P<label>"),
        (
            {"by": "filename", "pattern": "("},
            "label.pattern '(' is not a regular expression: missing ), unterminated subpattern",
        ),
        ({"by": "filename", "pattern": "x"}, "label.pattern 'x' has no group named label; write (?P<label>...)"),
        ({"pattern": PATTERN}, "label.pattern needs label.by: filename, not directory"),
        ({"by": "column"}, "label.by: column and label.column go together"),
        ({"column": "x"}, "label.by: column and label.column go together"),
        ({"type": "int"}, "label.type: int needs label.by: column"),
        ({"by": "none", "base": 1}, "label.base, label.vocabulary and label.texts need"),
        ({"by": "none", "vocabulary": "x"}, "label.base, label.vocabulary and label.texts need"),
        ({"by": "column", "column": "x"}, "label.by: column needs source.by: manifest, idx, arrays,"),
    ],
)
def test_label_that_does_not_fit_is_refused(label: dict[str, Any], message: str) -> None:
    with pytest.raises(errors.ConfigError, match=re.escape(message)):
        parse(label=label)


@case_tables.each_case(
    "split, message",
    [
        ({"by": "hash"}, "split.by: hash and split.fractions go together"),
        ({"fractions": {"a": 0.5}}, "split.by: hash and split.fractions go together"),
        ({"by": "column"}, "split.by: column and split.column go together"),
        ({"by": "hash", "fractions": {"a": 0.5, "b": 0.4}}, "split.fractions sum to 0.9; they must sum to 1"),
        ({"holdout": {"dev": {"split": "dev", "first": 1}}}, "split.holdout: dev cannot be taken from itself"),
        (
            {"by": "source", "names": ["train", "test"], "holdout": {"dev": {"split": "trian", "first": 1}}},
            "split.holdout takes dev from 'trian'; the splits are train, test",
        ),
        ({"stratify": True}, "split.stratify and split.group need split.by: hash, not none"),
        ({"group": "x"}, "split.stratify and split.group need split.by: hash, not none"),
        (
            HASH | {"rename": {"val": "test"}},
            "split.rename and split.names need split.by: directory, column, table or source, not hash",
        ),
        ({"names": ["train"]}, "split.rename and split.names need split.by: directory"),
        (HASH | {"name": "all"}, "split.name needs split.by: none, not hash"),
        ({"name": "a b"}, "split name 'a b' must consist of letters, digits, '_', '.' and '-'"),
        ({"by": "directory", "rename": {"val": "../x"}}, "split name '../x' must consist of letters"),
        (
            HASH | {"group": "person"},
            "split.group 'person' is neither a manifest's column nor a group of label.pattern",
        ),
    ],
)
def test_split_that_does_not_fit_is_refused(split: dict[str, Any], message: str) -> None:
    with pytest.raises(errors.ConfigError, match=re.escape(message)):
        parse(split=split)


@case_tables.each_case(
    "sections, message",
    [
        ({"split": {"by": "column", "column": "x"}}, "split.by: column needs source.by: manifest"),
        ({"columns": {"age": {}}}, "columns needs source.by: manifest, idx, arrays,"),
        ({"source": {"manifest": {"key": "id"}}}, "source.manifest needs source.by: manifest"),
        ({"source": {**MANIFEST, "include": "*.jpg"}}, "source.include needs source.by: files"),
        ({"label": {"by": "none"}, "split": HASH | {"stratify": True}}, "split.stratify needs classes"),
        (
            {"output": {"num_shards": 1, "examples_per_shard": 3}},
            "output.num_shards and output.examples_per_shard contradict each other; give one",
        ),
        (
            {"split": HASH, "output": {"num_shards": {"val": 1}}},
            "output.num_shards names val, the splits are train, test",
        ),
        ({"output": {"writer": "beam"}}, "output.writer: beam needs output.num_shards"),
        (
            {"split": {"by": "directory"}, "output": {"writer": "beam", "num_shards": 1}},
            "and known splits (split.names)",
        ),
        (
            {"split": HASH, "output": {"writer": "beam", "num_shards": {"train": 1}}},
            "output.writer: beam needs output.num_shards of every split",
        ),
        (
            {"output": {"writer": "beam", "num_shards": 1, "shuffle": "none"}},
            "output.writer: beam cannot keep an order; output.shuffle: none needs writer: stream",
        ),
    ],
)
def test_sections_that_contradict_each_other_are_refused(sections: dict[str, Any], message: str) -> None:
    with pytest.raises(errors.ConfigError, match=re.escape(message)):
        parse(**sections)


def test_config_with_several_errors_names_all_of_them() -> None:
    with pytest.raises(errors.ConfigError, match=r"label\.base: .*; rejects\.max_fraction: .*; unknown key 'foo'"):
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


@case_tables.each_case(
    "sections, message",
    [
        ({"features": {"foo": "x"}}, "features names 'foo', which is none of image/caption, image/channels"),
        (
            {"features": {"image/key": "image/format"}},
            "features 'image/format' and 'image/key' both have the key 'image/format'",
        ),
        (
            {"source": MANIFEST, "columns": {"image/key": {}}},
            "features 'image/key' and 'columns/image/key' both have the key 'image/key'",
        ),
    ],
)
def test_features_that_do_not_resolve_are_refused(sections: dict[str, Any], message: str) -> None:
    with pytest.raises(errors.ConfigError, match=re.escape(message)):
        parse(**sections)


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
    assert config_lib.default_name(output) == name
    assert sections.OutputConfig(name=name).name == name


# --- images that are encoded again -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        pytest.param({"image": {"fit": "crop"}}, "image.fit: crop needs image.resize", id="fit"),
        pytest.param({"image": {"enlarge": True}}, "image.enlarge needs image.shortest_side or", id="enlarge"),
        pytest.param(
            {"image": {"other_formats": "reject", "encode": "png"}},
            "image.other_formats is for image.encode: keep, not png",
            id="other-formats",
        ),
        pytest.param({"image": {"background": [0, 0, 256]}}, "image.background.2: input should be less", id="color"),
        pytest.param({"image": {"limits": {"max_aspect_ratio": 0.5}}}, "image.limits.max_aspect_ratio", id="ratio"),
        pytest.param(
            {
                "source": {"by": "coco", "coco": {"annotations": {"train": "a.json", "validation": "b.json"}}},
                "image": {"resize": [4, 5], "fit": "pad"},
            },
            "image.fit: pad would leave boxes in another place than the objects",
            id="boxes-that-move",
        ),
        pytest.param(
            {"image": {"encode": "png", "resize": [4, 5], "shortest_side": 4}},
            "image.resize and image.shortest_side contradict each other; give one",
            id="two-sizes",
        ),
        pytest.param(
            {"image": {"encode": "png", "resize": [20_000, 20_000]}},
            "image.resize: 20000 x 20000 are more than 178,956,970 pixels",
            id="resize-too-large",
        ),
        pytest.param(
            {"image": {"encode": "png", "quality": 80}}, "image.quality needs image.encode: jpeg, not png", id="quality"
        ),
        pytest.param(
            {"image": {"encode": "webp", "color": "gray"}},
            "image.encode: webp stores three channels, and image.color is gray: set image.encode: png or jpeg",
            id="gray-webp",
        ),
        pytest.param(
            {"image": {"encode": "webp", "webp": "lossless", "quality": 80}},
            "image.quality has no effect with image.webp: lossless: leave out one of the two",
            id="quality-of-lossless-webp",
        ),
        pytest.param(
            {
                "source": {
                    "by": "coco",
                    "coco": {"annotations": {"train": "a.json", "validation": "b.json"}, "masks": True},
                },
                "image": {"frames": "each"},
            },
            "image.frames: each repeats the boxes of a file for each of its frames, but not the masks: set",
            id="frames-with-masks",
        ),
        pytest.param(
            {"image": {"frames": "each"}, "duplicates": {"near": "drop"}},
            "duplicates.near: drop leaves out whole files, and image.frames: each stores the frames of a file: set dup",
            id="frames-and-dropped-duplicates",
        ),
        pytest.param({"image": {"webp": "source"}}, "image.webp needs image.encode: webp, not keep", id="webp-of-keep"),
        pytest.param(
            {"image": {"encode": "jpeg", "resampler": "pillow"}},
            "image.resampler needs a size: one of image.resize, image.shortest_side, image.longest_side, image.max_pix",
            id="pillow-without-size",
        ),
        pytest.param({"image": {"encode": "jpeg", "quality": 101}}, "image.quality: input should be less", id="101"),
        pytest.param({"image": {"encode": "png", "resize": [4]}}, "image.resize.1: field required", id="one-side"),
        pytest.param({"image": {"encode": "png", "resize": [0, 4]}}, "image.resize.0: input should be", id="no-side"),
        pytest.param(
            {
                "source": {"by": "files", "masks": {"image": "(.*)\\.jpg", "mask": "\\1.png"}},
                "image": {"encode": "png", "resize": [4, 5]},
            },
            "image.resize would leave the masks in another size than the images; drop one",
            id="masks",
        ),
        pytest.param(
            {"source": {"by": "manifest", "manifest": {"image": None}}},
            "source.manifest.files goes with source.manifest.image: null",
            id="neither-image-nor-files",
        ),
        pytest.param(
            {"source": {"by": "manifest", "manifest": {"files": "*.png"}}},
            "source.manifest.files goes with source.manifest.image: null",
            id="image-and-files",
        ),
        pytest.param(
            {"source": {"by": "manifest", "manifest": {"image": None, "files": "*.png", "merge_rows": True}}},
            "source.manifest.files pairs each row with a file; source.manifest.merge_rows needs names",
            id="merged-and-paired",
        ),
        pytest.param(
            {"source": {"by": "manifest", "manifest": {"image": None, "files": "*.png", "trust": True}}},
            "source.manifest.files lists the files; source.manifest.trust needs their names in a column",
            id="trusted-and-paired",
        ),
        pytest.param(
            {"source": {"by": "manifest", "manifest": {"further": {"Later": "b"}}}},
            "source.manifest.further 'Later' is no name for keys such as image/after/encoded; use a to z, 0 to 9 and _",
            id="further-in-capitals",
        ),
        pytest.param(
            {"source": {"by": "manifest", "manifest": {"further": {"class": "b"}}}},
            "source.manifest.further 'class' is taken: image/class is, or begins, the key of another feature",
            id="further-class",
        ),
        pytest.param(
            {"source": {"by": "manifest", "manifest": {"further": {"after": "{a}{id.jpg"}}}},
            "source.manifest.further '{a}{id.jpg' has a brace without its other one",
            id="further-with-open-brace",
        ),
        *(
            pytest.param(
                {"source": {"by": "manifest", "manifest": {"further": {"b": "b"}, **others}}},
                f"source.manifest.further needs a row for each example, whose files are looked up: leave {name} out",
                id=name,
            )
            for name, others in (
                ("source.manifest.merge_rows", {"merge_rows": True}),
                ("source.manifest.trust", {"trust": True, "size": "c"}),
                ("source.manifest.files", {"image": None, "files": "*.png"}),
            )
        ),
        pytest.param(
            {"source": {"by": "manifest", "manifest": {"further": {"b": "b"}}}, "image": {"frames": "each"}},
            "image.frames: each makes an example of each frame of a file, and source.manifest.further puts several",
            id="further-with-frames",
        ),
        *(
            pytest.param(
                {"source": {"by": "manifest", "manifest": {"further": {"b": "b"}}}, "image": {"encode": encode}},
                f"image.encode: {encode} is for the one image of an example, and source.manifest.further gives several",
                id=f"further-{encode}",
            )
            for encode in ("raw", "int64_list", "float_list")
        ),
        pytest.param(
            {"source": {"manifest": {"further": {"b": "b"}}}},
            "source.manifest needs source.by: manifest; not files",
            id="further-of-files",
        ),
        pytest.param(
            {"source": {"by": "manifest", "manifest": {"size": "bytes"}}},
            "source.manifest.size is for source.manifest.trust: true; without it each file's size is looked up",
            id="size-without-trust",
        ),
        pytest.param(
            {"source": {"by": "manifest", "manifest": {"trust": True}}, "output": {"target_shard_bytes": "1MiB"}},
            "source.manifest.trust leaves the sizes of the images unknown: name a column in source.manifest.size",
            id="trust-without-sizes",
        ),
    ],
)
def test_image_and_files_that_contradict_are_refused(sections: dict[str, Any], message: str) -> None:
    with pytest.raises(errors.ConfigError, match=re.escape(message)):
        parse(**sections)


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
    with pytest.raises(errors.ConfigError, match=rf"{key}.*: input should be a number .*, got True"):
        parse(**fields)


@case_tables.each_case("suffix", [".tfrecord.gz", ".gz", ".tfrecord.GZ", ".zst"])
@case_tables.each_case("compression, remedy", [("none", "leave it out, or set"), ("gzip", "adds .gz itself, so")])
def test_suffix_of_compressed_files_is_refused(suffix: str, compression: str, remedy: str) -> None:
    message = rf"output.suffix '{re.escape(suffix)}' is of compressed files: .*{remedy}"
    with pytest.raises(errors.ConfigError, match=message):
        parse(output={"suffix": suffix, "compression": compression})


@case_tables.each_case("given", ["output.suffix=", "output.suffix=null", 'output.suffix=""'])
def test_suffix_may_be_nothing(given: str) -> None:
    assert config_lib.load_config(None, [given]).output.suffix == ""


@case_tables.each_case(
    "sections, message",
    [
        (
            {"columns": {"age": {}}},
            "columns.age is 'age', and source.pattern has no such group; its groups are x: write",
        ),
        ({"label": {"by": "column", "column": "kind"}}, "label.column is 'kind', and source.pattern has no such group"),
        (
            {"label": {"by": "columns", "columns": ["a"]}},
            "label.columns a is 'a', and source.pattern has no such group",
        ),
        (
            {"split": {"by": "hash", "fractions": {"train": 0.5, "test": 0.5}, "group": "who"}},
            "split.group is 'who', and source.pattern has no such group",
        ),
        (
            {"source": {"pattern": "(?P<split>.*)"}},
            "source.pattern has a group 'split' that nothing takes: set split.by: column and split.column: split",
        ),
        ({"source": {"by": "tar", "pattern": "(?P<x>.*)"}}, "source.pattern needs source.by: files, listing; not tar"),
        ({"split": {"by": "table"}}, "split.by: table needs source.by: manifest; not files"),
        ({"split": {"by": "lists"}}, "split.by: lists and split.lists go together"),
        ({"split": {"unlisted": "reject"}}, "split.unlisted needs split.by: lists, not none"),
        (
            {"source": {"manifest": {"join": {"key": "id"}}}},
            "source.manifest.join.key and source.manifest.join.tables go",
        ),
        ({"source": {"manifest": {"image": "{id}/*"}}}, "source.manifest.image '{id}/*' has a '*' that is neither"),
    ],
)
def test_rules_for_paths_that_do_not_fit_are_refused(sections: dict[str, Any], message: str) -> None:
    fields = {"label": {"by": "none"}, "source": {"pattern": "(?P<x>.*)"}, **sections}
    with pytest.raises(errors.ConfigError, match=re.escape(message)):
        config_lib.parse_config(fields, "a test")


# --- duplicates ------------------------------------------------------------------------------------------------------


BEAM = {"uri": "out", "writer": "beam", "num_shards": 2}


def parse_duplicates(duplicates: dict[str, Any], **sections: Any) -> config_lib.Config:
    return config_lib.parse_config({"duplicates": duplicates, **sections}, "a test")


@case_tables.each_case(
    "duplicates, sections, message",
    [
        (
            {"exact": "report", "near": "drop"},
            {},
            r"duplicates\.near: drop also drops images with the same bytes, and duplicates\.exact is report: set "
            r"duplicates\.exact: drop or off",
        ),
        ({"near_distance": 3}, {}, r"duplicates\.near_distance needs duplicates\.near: report"),
        ({"near": "report", "near_distance": 7}, {}, "less than or equal to 6, got 7"),
        ({"keep_in": ["test"]}, {}, r"duplicates\.keep_in needs duplicates\.exact or"),
        ({"exact": "drop", "keep_in": ["a", "a"]}, {}, r"keep_in names 'a': give each split once"),
        ({"exact": "drop", "keep_in": ["a/b"]}, {}, r"keep_in names 'a/b': give each split once"),
        (
            {"exact": "drop", "keep_in": ["tset"]},
            {"split": {"by": "hash", "fractions": {"train": 0.5, "test": 0.5}}},
            r"duplicates\.keep_in names tset, the splits are train, test",
        ),
        ({"exact": "fail"}, {"output": BEAM}, r"writer: beam keeps no hashes of what it has written"),
        ({"exact": "warn"}, {}, r"duplicates\.exact: input should be 'off', 'report', 'drop' or"),
    ],
)
def test_config_that_cannot_be_meant_is_refused(
    duplicates: dict[str, Any], sections: dict[str, Any], message: str
) -> None:
    with pytest.raises(errors.ConfigError, match=message):
        parse_duplicates(duplicates, **sections)


def test_drop_goes_with_beams_writer() -> None:
    assert parse_duplicates({"exact": "drop", "near": "drop"}, output=BEAM).duplicates.settings().only("drop").is_on


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
def test_identity_is_that_of_the_duplicates_that_are_known(
    one: dict[str, Any], other: dict[str, Any], is_same: bool
) -> None:
    split = {"by": "directory"}
    assert (parse_duplicates(one, split=split).identity() == parse_duplicates(other, split=split).identity()) is is_same
    assert parse_duplicates({}).identity() == config_lib.parse_config({}, "a test").identity()
