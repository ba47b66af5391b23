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
from tests import error_texts

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


@pytest.mark.parametrize(
    ("text", "value"),
    [
        pytest.param("", None, id="empty"),
        pytest.param("a: &x {b: 1}\nc: {<<: *x, b: 2}\n", {"a": {"b": 1}, "c": {"b": 2}}, id="merged-and-overridden"),
        pytest.param(
            "w: &w {b: 1}\nd: {e: {f: &x {<<: *w, b: 2}}}\nc: {<<: *x}\n",
            {"w": {"b": 1}, "d": {"e": {"f": {"b": 2}}}, "c": {"b": 2}},
            id="merged-before-it-is-made",
        ),
        pytest.param("a: &x {b: 1}\nc: [*x, *x]\n", {"a": {"b": 1}, "c": [{"b": 1}] * 2}, id="aliases"),
        pytest.param("1: a\n'1': b\n", {1: "a", "1": "b"}, id="number-and-text"),
        pytest.param("uri: gs://b/x:y\n", {"uri": "gs://b/x:y"}, id="address"),
        pytest.param("{a:b: null}", {"a:b": None}, id="colon-in-a-key"),
        pytest.param("{'a:b': }", {"a:b": None}, id="colon-in-a-quoted-key"),
    ],
)
def test_parse_takes_what_only_looks_wrong(text: str, value: object) -> None:
    assert strict_yaml.parse(text, "c.yaml") == value


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("label: {by: none, by: column}", "config-key-twice"),
        ("label: {by:none}", "config-key-without-value"),
        ("split:\n  by: hash\n  fractions: {train:0.8, test:0.2}", "config-key-without-value"),
    ],
)
def test_parse_of_what_cannot_be_meant_says_what_to_write(text: str, code: str) -> None:
    with error_texts.raises(code):
        strict_yaml.parse(text, "c.yaml")


@pytest.mark.parametrize(
    ("text", "explained"),
    [
        (
            "label:\n\tby: x\n",
            "line 2, column 1: found character '\\t' that cannot start any token in 'by: x'; indent with spaces, not "
            "with tabs",
        ),
        (
            'label:\n  pattern: "\\d+"\n',
            "line 2, column 14: found unknown escape character 'd' in 'pattern: \"\\\\d+\"'; put a regular expression "
            "between single quotes",
        ),
        (
            "source:\n  by: files\n   include: x\n",
            "line 3, column 11: mapping values are not allowed here in 'include: x'; put a text that holds ': ' "
            "between quotes, and give the keys of one section the same indent",
        ),
        (
            "label: {by: none\nsplit: {by: none}\n",
            "line 2, column 6: expected ',' or '}', but got ':' in 'split: {by: none}' (begun in line 1); close "
            "the bracket, and put a comma between entries",
        ),
        (
            "a:\n  b: 1\n c: 2\n",
            "line 3, column 2: expected <block end>, but found '<block mapping start>' in 'c: 2' (begun in line "
            "1); give the keys of one section the same indent",
        ),
        ("a: 'x\n", 'line 1, column 1: found unexpected end of stream in "a: \'x"; close the quote'),
        (
            "a: *.jpg\n",
            "line 1, column 5: expected alphabetic or numeric character, but found '.' in 'a: *.jpg'; put a text that "
            "begins with '*' between quotes",
        ),
        (
            "a: @x\n",
            "line 1, column 4: found character '@' that cannot start any token in 'a: @x'; put the text between",
        ),
        (
            "a: 1\n---\nb: 2\n",
            "line 2, column 1: but found another document in '---' (begun in line 1); a config is one document; "
            "remove the line ---",
        ),
        ("a: 1\nb: \x01\n", "line 2: special characters are not allowed"),
        ("? [a]: 1\n", "line 1, column 3: found unhashable key in '? [a]: 1'"),
    ],
)
def test_config_that_is_no_yaml_is_explained_in_one_line(tmp_path: pathlib.Path, text: str, explained: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(errors.ConfigError) as caught:
        config_lib.load_config(str(path))
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(f"{path} is not YAML: {explained}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "label:\n  by:none\n",
            "label: input should be a mapping, got 'by:none'; write 'by: none', with a space after the colon",
        ),
        ("label: none\n", "label: input should be a mapping, got 'none'; write {by: none}"),
        ("columns: {age: int}\n", "columns.age: input should be a mapping, got 'int'; write {type: int}"),
        ("columns: {age: 7}\n", "columns.age: input should be a mapping, got 7"),
        ("label:none\n", "holds a str; a config is a mapping of sections: write 'label: none', with a space after the"),
        ("label: {by: none}\nlabel: {}\n", "the key 'label' is given twice, in lines 1 and 2; keep one of them"),
    ],
)
def test_config_that_is_another_yaml_than_meant_says_what_to_write(
    tmp_path: pathlib.Path, text: str, message: str
) -> None:
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(errors.ConfigError, match=re.escape(message)):
        config_lib.load_config(str(tmp_path / "c.yaml"))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("label={by: none, by: column}", "--set label: the key 'by' is given twice, both times in line 1; keep one"),
        ("columns={age: {type: int}, age: {}}", "--set columns: the key 'age' is given twice"),
        ("label={by:none}", "--set label, line 1: 'by:none' has no value; write 'by: none', with a space after"),
        ("label=by:none", "label: input should be a mapping, got 'by:none'; write 'by: none', with a space after"),
        ("split=hash", "split: input should be a mapping, got 'hash'; write {by: hash}"),
        ("label.by:none", "--set 'label.by:none' does not have the form section.key=value; write 'label.by=none'"),
    ],
)
def test_override_that_cannot_be_meant_says_what_to_write(override: str, message: str) -> None:
    with pytest.raises(errors.ConfigError, match=re.escape(message)):
        config_lib.load_config(None, [override])


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ({"type": "int", "missing": "default", "default": "x"}, "columns.age: default of type: int: 'x' is not an"),
        (
            {"type": "string", "transform": "z_score"},
            "columns.age: transform: z_score is for numbers; give type: float",
        ),
        ({"top_k": 3}, "columns.age: top_k is for transform: vocabulary, not none"),
        ({"type": "integer"}, "columns.age.type: input should be 'string', 'int' or 'float', got 'integer'"),
    ],
)
def test_column_that_is_wrong_is_named(column: dict[str, Any], message: str) -> None:
    with pytest.raises(errors.ConfigError, match=re.escape(f"config from x: {message}")):
        config_lib.parse_config({"source": {"by": "manifest"}, "columns": {"age": column}}, "x")


def test_override_that_is_a_broken_mapping_is_an_error() -> None:
    with error_texts.raises("config-not-yaml"):
        config_lib.load_config(None, [r'label={pattern: "\d"}'])
