"""Writes a commented config for a folder: the preset that fits it, with the keys that matter there."""

from __future__ import annotations

import copy
import importlib.resources
import posixpath
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pydantic
import yaml

from imagebeam import errors, storage
from imagebeam.pipelines.config import model as config_lib
from imagebeam.pipelines.config import schema
from imagebeam.pipelines.messages import terminal
from imagebeam.pipelines.recognize import mask_signs, recognize_folder
from imagebeam.transforms.formats import base_format
from imagebeam.transforms.sources.folder_probe import Change, Finding

_MEANINGS: Mapping[str, str] = {  # by key, or by key and value; the preset or the reference explains other keys
    "source.uri": "the images: a local path is relative to the folder where the command runs",
    "source.coco.panoptic": "folders of the PNG files of the segments, below uri, by split",
    "source.coco.captions": "JSON files of the captions, below uri, by split",
    "source.by": "the format of the source",
    "source.manifest.path": "the table, below uri",
    "source.manifest.image": "the column with the path of the image, or a template of columns in braces",
    "source.manifest.root": "the folder that these paths are relative to, as seen from the table",
    "source.manifest.format": "how the table is read, as its extension does not say",
    "source.manifest.header": "names of the columns, as the table has no line with them",
    "source.masks.image": "paths of the images, as a regular expression; other files are skipped",
    "source.masks.mask": "path of the mask of an image, with the groups of the expression above",
    "source.pattern": "what the path of an image says: the groups are columns for label and split",
    "source.include": "only these paths; other images are skipped and counted",
    "label.by=directory": "the folder is the class: sorted names, ids from 0",
    "label.by=filename": "the name of the file holds the class",
    "label.by=column": "a column holds the class or the number to predict",
    "label.by=columns": "each of these columns of 0 and 1 is a class",
    "label.by=none": "images have no class",
    "label.pattern": "what in the name of a file is the class",
    "label.column": "its name",
    "label.columns": "their order is that of the ids",
    "label.type=int": "the number itself is stored; class makes ids of names",
    "label.type=float": "the number itself is stored, in 32 bits; class makes ids of names",
    "split.by=directory": "the first folder is the split",
    "split.by=hash": "by the hash of an image's path: an image stays in its split when others are added",
    "split.by=column": "a column holds the split",
    "split.by=source": "the files or folders of the source are the splits",
    "split.by=lists": "text files name the images of each split",
    "split.by=none": "all images are one split",
    "split.lists": "one image a line, by the end of its path",
    "split.rename": "from the name that is found to the name of the split",
    "split.fractions": "their shares, which sum to 1",
    "split.stratify": "makes the shares exact for each class",
    "image.encode=keep": "files keep their own bytes",
    "columns": "columns of the table that are stored as features",
    "features": "from a standard key to the key in the records; null leaves it out",
    "output.uri": "the folder of the dataset that is written",
    "output.compression": "gzip does not make JPEG and PNG smaller",
    "output.shuffle": "the order of the records: by the hash of the path, the same in each run",
    "rejects.max_fraction": "if more than this share of the images is bad, nothing is written",
}
_OFTEN = (
    Change("split.seed", 1, "other images in each split"),
    Change("image.shortest_side", 256, "smaller images; by default they keep their size and bytes"),
    Change("output.num_shards", 16, "shards of each split; by default by size"),
    Change("statistics.pixels", True, "mean and deviation of each channel, for the reader's normalize='dataset'"),
    Change("rejects.max_fraction", 0.05, "share of bad images up to which a dataset is written; by default 0.01"),
    Change("duplicates.exact", "report", "finds equal images, within a split and between splits"),
)


class Written(NamedTuple):
    """A config that was written, or would be."""

    text: str
    found: recognize_folder.Recognition
    chosen: Finding


def make(uri: str, preset: str | None = None, command: str = "") -> Written:
    """Returns a config for the folder at `uri`.

    Args:
        uri: of a folder, or of a table in it, as the user wrote it.
        preset: what to write, in place of the preset that fits best.
        command: that is writing it, for the first line.

    Raises:
        ConfigError: if there is no such folder, or nothing is known of it, or the preset is not known.
    """
    if preset is not None and preset not in config_lib.preset_names():
        raise errors.ConfigError(
            "config-unknown",
            f"init writes a preset, and --config {preset!r} is none ({', '.join(config_lib.preset_names())}); a YAML "
            "file needs no other: give it to plan and convert",
        )
    found = recognize_folder.recognize(uri)
    chosen = next((each for each in found.candidates if preset in (None, each.preset)), None)
    if chosen is None and preset is None:
        remarks = "".join(f"; {each}" for each in found.remarks)
        raise errors.ConfigError(
            "folder-not-recognized",
            f"no preset is known that reads {uri!r} ({found.seen}){remarks}; docs/recipes has a page for each kind of "
            "source: name its preset with --config, which writes it to be changed",
        )
    if chosen is None:
        chosen = Finding(str(preset), "chosen with --config; nothing in the folder speaks for it")
    fields = config_lib.read_fields(chosen.preset, recognize_folder.overrides_of(chosen))
    fields["source"] = {"uri": found.address(chosen), **(fields.get("source") or {})}
    fields["output"] = {"uri": _default_output(found.address(chosen)), **(fields.get("output") or {})}
    config = config_lib.parse_config(fields, chosen.preset)
    found = found._replace(remarks=(*found.remarks, *mask_signs.notes_on_numbers(config)))
    # names of files are in it: a line break would end the comment
    header = "".join(f"# {terminal.printable(line)}\n" for line in _header(found, chosen, command))
    return Written(f"{header}\n{_Writer(chosen, fields).text()}", found, chosen)


def write(written: Written, uri: str, force: bool = False) -> None:
    """Writes a config to a file.

    Raises:
        ConfigError: if there is one already, unless `force` replaces it, or it cannot be written.
    """
    address = storage.normalize(uri)
    store, data = storage.storage_of(address), written.text.encode("utf-8", "surrogateescape")
    with errors.explained("init-unwritable", f"--output {uri!r} cannot be written"):
        if force:
            store.write_whole(address, data)
        elif not store.create_new(address, data):
            raise errors.ConfigError(
                "init-file-exists",
                f"{uri!r} exists already: name another file with --output, or replace it with --force",
            )


def _default_output(uri: str) -> str:
    """Returns where the dataset goes: beside a folder in a bucket; for a local one, into the current folder."""
    folder, _, name = uri.rstrip("/").rpartition("/")
    is_remote = storage.scheme_of(uri) != "file"
    if is_remote and folder and not folder.endswith("/"):
        return f"{folder}/{name}-tfrecords"
    name = name if is_remote else posixpath.basename(storage.normalize(uri))
    return f"{name or 'images'}-tfrecords"


def _header(found: recognize_folder.Recognition, chosen: Finding, command: str) -> Iterator[str]:
    yield f"Config of imagebeam for {found.given}" + (f", written by: {command}" if command else "")
    doubt = "" if found.sure is chosen else " (not beyond doubt)"
    yield f"Preset {chosen.preset}{doubt}: {chosen.evidence}."
    yield from (f"Note: {each}." for each in (*chosen.notes, *chosen.doubts, *found.remarks))
    others = [each for each in found.candidates if each is not chosen]
    if others:
        yield "Also possible, by imagebeam init with --config:"
        yield from (f"  {each.preset} in {found.address(each)}: {each.evidence}" for each in others)
    yield "Lines that begin with # are not in effect. docs/config.md describes all keys."


class _Writer:
    """Lines of YAML for a config, each key with a comment above it."""

    def __init__(self, chosen: Finding, fields: Mapping[str, Any]):
        self._fields = fields
        self._of_preset = config_lib.read_fields(chosen.preset)
        self._comments = dict(_comments_in(chosen.preset))
        self._reference = {key: meaning for key, _, meaning in schema.key_rows()}
        taken = {each.key for each in chosen.often}
        changes = (*chosen.often, *(each for each in _OFTEN if each.key not in taken))
        self._changes = [each for each in changes if self._is_possible(each)]

    def text(self) -> str:
        sections = [*self._fields, *(each.key.partition(".")[0] for each in self._changes)]
        known = [name for name in config_lib.Config.model_fields if name in sections]
        return "\n".join(
            "\n".join(self._section(config_lib.Config, name, self._fields, "", "")) + "\n" for name in known
        )

    def _is_possible(self, change: Change) -> bool:
        """Returns whether the config with a change is one, and another one."""
        if change.key == "split.seed" and (self._fields.get("split") or {}).get("by") != "hash":
            return False
        fields = copy.deepcopy(dict(self._fields))
        config_lib.apply_override(fields, f"{change.key}={recognize_folder.as_yaml(change.value)}")
        try:
            config_lib.parse_config(fields, "init")
        except errors.ConfigError:
            return False
        return fields != self._fields

    def _section(self, model: Any, name: str, fields: Mapping[str, Any], above: str, indent: str) -> Iterator[str]:
        """Yields the lines of a key, and of all keys below it."""
        key, value = f"{above}{name}", fields.get(name)
        field = model.model_fields.get(name)
        inner: Any = field.annotation if field is not None else None
        is_section = _is_model(inner)
        if name in fields and not is_section:
            if name == "by" or field is None or value != _as_read(field.default):
                yield from self._key(key, name, value, indent)
            return
        changes = [each for each in self._changes if each.key.startswith(f"{key}.")]
        of_section = [each for each in self._changes if each.key == key]
        if not is_section or not (value or changes or of_section):
            yield from self._suggestions(key, changes, indent)
            return
        names = dict.fromkeys([*(value or ()), *(each.key[len(key) + 1 :].partition(".")[0] for each in changes)])
        lines: list[str] = []
        for each in (each for each in inner.model_fields if each in names):
            below = inner.model_fields[each].annotation
            if each in (value or ()) or _is_model(below):
                lines += self._section(inner, each, value or {}, f"{key}.", f"{indent}  ")
        is_set = any(not line.lstrip().startswith("#") for line in lines)
        yield f"{indent}{'' if is_set else '# '}{name}:"
        yield from lines
        for change in changes:
            if change.key.rpartition(".")[0] == key:
                yield f"{indent}  # {change.why}:"
                yield f"{indent}  # {change.key.rpartition('.')[2]}: {recognize_folder.as_yaml(change.value)}"
        for change in of_section:
            yield f"{indent}  # {change.why}:"
            yield from (f"{indent}  # {each}: {recognize_folder.as_yaml(v)}" for each, v in change.value.items())

    def _suggestions(self, key: str, changes: list[Change], indent: str) -> Iterator[str]:
        for change in changes:
            yield f"{indent}# {change.why}:"
            yield f"{indent}# {key}: {{{change.key[len(key) + 1 :]}: {recognize_folder.as_yaml(change.value)}}}"

    def _key(self, key: str, name: str, value: Any, indent: str) -> Iterator[str]:
        if comment := self._comment(key, value):
            yield f"{indent}# {comment}"
        if isinstance(value, dict) and len(value) > 3:
            yield f"{indent}{name}:"
            for each, inner in value.items():
                yield f"{indent}  {recognize_folder.as_yaml(each)}: {recognize_folder.as_yaml(inner)}"
        else:
            yield f"{indent}{name}: {recognize_folder.as_yaml(value)}"

    def _comment(self, key: str, value: Any) -> str:
        """Returns what a key means: by the table above, else by its preset if it is unchanged, or the reference."""
        plain = str(value).lower() if isinstance(value, (str, bool)) else ""
        about = base_format.format_of(plain).ABOUT if key == "source.by" and plain in base_format.FORMATS else ""
        meant = about or _MEANINGS.get(f"{key}={plain}") or _MEANINGS.get(key)
        if meant is None and key in self._comments and config_lib.value_at(self._of_preset, key) == value:
            meant = self._comments[key]
        if meant is not None:
            return meant
        text = _FOR.sub("", self._reference.get(key, "").replace("\\|", "|"))
        first = re.split(r"(?<=[^.])[.:;] ", text)[0].rstrip(".:;")
        return (first[:1].lower() + first[1:]).replace("`", "")


_FOR = re.compile(r"For `[^`]*`(, `[^`]*`)*( and `[^`]*`)?: ")  # what a key is for, at the start of its meaning


def _is_model(kind: Any) -> bool:
    """Returns whether a key is a section whose keys are all known; `features` has those of the features."""
    is_model = isinstance(kind, type) and issubclass(kind, pydantic.BaseModel)
    return is_model and kind.model_config.get("extra") == "forbid"


def _as_read(default: Any) -> Any:
    return list(default) if isinstance(default, tuple) else default


_TRAILING = re.compile(r"\s*#\s*(.*?)[.;]*\s*")


def _comments_in(preset: str) -> Iterator[tuple[str, str]]:
    """Yields the comments at the ends of lines of a preset, by the key of the line."""
    text = importlib.resources.files("imagebeam.configs").joinpath(f"{preset}.yaml").read_text("utf-8")
    lines = text.splitlines()

    def walk(node: yaml.Node, above: str) -> Iterator[tuple[str, str]]:
        for name, value in node.value if isinstance(node, yaml.MappingNode) else ():
            end = value.end_mark
            rest = lines[end.line][end.column :] if end.line < len(lines) else ""
            is_block = isinstance(value, yaml.MappingNode) and not value.flow_style
            if not is_block and (match := _TRAILING.fullmatch(rest)):
                yield f"{above}{name.value}", match[1]
            yield from walk(value, f"{above}{name.value}.")

    root = yaml.compose(text, yaml.SafeLoader)
    if root is not None:
        yield from walk(root, "")
