from __future__ import annotations

import pathlib
import re
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from imagebeam import errors
from imagebeam.pipelines.config import model as config_lib
from imagebeam.transforms.sources import strict_yaml
from tests import case_tables, error_texts

keys = st.text("abcxyz", min_size=1, max_size=3)
trees = st.recursive(
    st.none() | st.integers() | st.text("ab: {}\"'", max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=20,
)


@settings(deadline=None)
@given(trees, st.booleans())
def test_parse_of_keys_given_once_is_that_of_yaml(tree: Any, flow: bool) -> None:
    text = yaml.safe_dump(tree, default_flow_style=flow)
    assert strict_yaml.parse(text, "c.yaml") == tree


@settings(deadline=None)
@given(st.lists(keys, max_size=4), keys, st.data(), st.booleans())
def test_parse_of_a_key_given_twice_at_any_depth_names_it_and_both_lines(
    path: list[str], key: str, data: st.DataObject, in_list: bool
) -> None:
    entries = data.draw(st.lists(keys.filter(lambda other: other != key), unique=True, max_size=4))
    first = data.draw(st.integers(0, len(entries)))
    entries.insert(first, key)
    second = data.draw(st.integers(first + 1, len(entries)))
    entries.insert(second, key)
    lines = [f"{'  ' * depth}{name}:" for depth, name in enumerate(path)]
    lines += [f"{'  ' * len(path)}{'- ' if in_list and not at else '  ' if in_list else ''}{name}: 1"
              for at, name in enumerate(entries)]  # fmt: skip
    start = len(path) + 1
    expected = f"c.yaml: the key {key!r} is given twice, in lines {start + first} and {start + second}; keep one of"
    with pytest.raises(errors.ConfigError, match=re.escape(expected)) as caught:
        strict_yaml.parse("\n".join(lines), "c.yaml")
    assert caught.value.code == "config-key-twice"


def test_parse_takes_what_only_looks_wrong() -> None:
    for text, value in [
        ("", None),  # empty
        ("a: &x {b: 1}\nc: {<<: *x, b: 2}\n", {"a": {"b": 1}, "c": {"b": 2}}),  # merged-and-overridden
        (
            "w: &w {b: 1}\nd: {e: {f: &x {<<: *w, b: 2}}}\nc: {<<: *x}\n",
            {"w": {"b": 1}, "d": {"e": {"f": {"b": 2}}}, "c": {"b": 2}},
        ),  # merged-before-it-is-made
        ("a: &x {b: 1}\nc: [*x, *x]\n", {"a": {"b": 1}, "c": [{"b": 1}] * 2}),  # aliases
        ("1: a\n'1': b\n", {1: "a", "1": "b"}),  # number-and-text
        ("uri: gs://b/x:y\n", {"uri": "gs://b/x:y"}),  # address
        ("{a:b: null}", {"a:b": None}),  # colon-in-a-key
        ("{'a:b': }", {"a:b": None}),  # colon-in-a-quoted-key
    ]:
        assert strict_yaml.parse(text, "c.yaml") == value


def test_parse_of_what_cannot_be_meant_says_what_to_write() -> None:
    for text, code in [
        ("label: {by: none, by: column}", "config-key-twice"),
        ("label: {by:none}", "config-key-without-value"),
        ("split:\n  by: hash\n  fractions: {train:0.8, test:0.2}", "config-key-without-value"),
    ]:
        with error_texts.raises(code):
            strict_yaml.parse(text, "c.yaml")


def test_config_that_is_no_yaml_is_explained_in_one_line(tmp_path: pathlib.Path) -> None:
    for text in [
        "label:\n\tby: x\n",
        'label:\n  pattern: "\\d+"\n',
        "source:\n  by: files\n   include: x\n",
        "label: {by: none\nsplit: {by: none}\n",
        "a:\n  b: 1\n c: 2\n",
        "a: 'x\n",
        "a: *.jpg\n",
        "a: @x\n",
        "a: 1\n---\nb: 2\n",
        "a: 1\nb: \x01\n",
        "? [a]: 1\n",
    ]:
        (tmp_path / "c.yaml").write_text(text)
        with error_texts.raises("config-not-yaml") as caught:
            config_lib.load_config(str(tmp_path / "c.yaml"))
        assert "\n" not in str(caught.value)


def test_config_that_reads_as_other_yaml_says_what_to_write(tmp_path: pathlib.Path) -> None:
    for text, code in [
        ("label:\n  by:none\n", "config-invalid"),
        ("label: none\n", "config-invalid"),
        ("columns: {age: int}\n", "config-invalid"),
        ("columns: {age: 7}\n", "config-invalid"),
        ("label:none\n", "config-no-mapping"),
        ("label: {by: none}\nlabel: {}\n", "config-key-twice"),
    ]:
        folder = case_tables.new_folder(tmp_path)
        (folder / "c.yaml").write_text(text)
        with error_texts.raises(code):
            config_lib.load_config(str(folder / "c.yaml"))


def test_override_that_cannot_be_meant_says_what_to_write() -> None:
    for override, code in [
        ("label={by: none, by: column}", "config-key-twice"),
        ("columns={age: {type: int}, age: {}}", "config-key-twice"),
        ("label={by:none}", "config-key-without-value"),
        ("label=by:none", "config-invalid"),
        ("split=hash", "config-invalid"),
        ("label.by:none", "set-form"),
        (r'label={pattern: "\d"}', "config-not-yaml"),
    ]:
        with error_texts.raises(code):
            config_lib.load_config(None, [override])


def test_column_that_is_wrong_is_named() -> None:
    for column in [
        {"type": "int", "missing": "default", "default": "x"},
        {"type": "string", "transform": "z_score"},
        {"top_k": 3},
        {"type": "integer"},
    ]:
        with error_texts.raises("config-invalid"):
            config_lib.parse_config({"source": {"by": "manifest"}, "columns": {"age": column}}, "x")
