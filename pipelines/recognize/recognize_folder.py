"""Recognizes which preset reads an unknown folder or file, and which settings it needs."""

from __future__ import annotations

import argparse
import collections
import dataclasses
import posixpath
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import yaml

from imagebeam import errors, plural, storage
from imagebeam.pipelines.config import model as config_lib
from imagebeam.pipelines.recognize import (
    archive_probe,
    layout_signs,
    left_out,
    mask_folders,
    mask_signs,
    unread_files,
)
from imagebeam.storage import remote
from imagebeam.transforms.formats import pairs
from imagebeam.transforms.formats.base_format import FORMATS, format_of
from imagebeam.transforms.formats.tables import detect_tables, table_formats, table_heads
from imagebeam.transforms.sources import files, folder_probe, input_places
from imagebeam.transforms.sources.folder_probe import Finding, FolderProbe, name_some

Sign: TypeAlias = Callable[[FolderProbe, str], Iterator[Finding]]  # called with a folder below the root of the probe

_CONTAINERS = ("idx", "arrays", "tar", "tfrecord", "parquet")  # a file of these holds many images
_TABLES = ("manifest", "sidecars")
# The presets that each sign may name. Among findings that nothing contradicts, the first one of this order is taken.
# A new preset is added here. One that does not exist, or not yet, is never named.
SIGNS: Mapping[Sign, tuple[str, ...]] = {
    **{format_of(by).detect: format_of(by).PRESETS for by in FORMATS if by not in (*_CONTAINERS, *_TABLES)},
    mask_signs.find_masks: ("segmentation", "carvana", "camvid"),
    **{format_of(by).detect: format_of(by).PRESETS for by in _CONTAINERS},
    layout_signs.find_lists_of_names: ("food101", "oxford_pets"),
    **{format_of(by).detect: format_of(by).PRESETS for by in _TABLES},
    layout_signs.find_classes_in_splits: ("imagenet", "imagefolder"),
    layout_signs.find_splits_in_classes: ("image_folder",),
    layout_signs.find_classes: ("image_folder",),
    layout_signs.find_labels_in_names: ("cats_dogs", "imagenet_files", "utkface", "image_folder"),
    layout_signs.find_unlabelled: ("imagefolder", "image_folder"),
    pairs.find_side_by_side: ("pairs",),
}
_OF_LITTLE_EVIDENCE = (layout_signs.find_unlabelled, pairs.find_side_by_side)  # if nothing else was found
_ZIP = ".zip"
_SYNSETS = "imagenet"
_RENAME = "split.rename"
_DEPTH = 4  # levels of folders that are searched for the data set
_LEVELS_ABOVE = 2  # folders above a table in which its images are looked for
_DEEPEST = 12  # levels of folders above the first files
_MAX_INNER = 8  # folders of one level
_MAX_SHOWN = 6  # candidates


class Recognition(NamedTuple):
    """The candidates for a folder, and remarks on it."""

    given: str  # its address as the user wrote it
    candidates: tuple[Finding, ...]  # the best one first
    remarks: tuple[str, ...]  # on what no preset reads
    seen: str  # content of the folder in a few words

    @property
    def sure(self) -> Finding | None:
        """The first candidate, if it explains nearly all images and nothing contradicts it."""
        return self.candidates[0] if self.candidates and not self.candidates[0].doubts else None

    def address(self, finding: Finding) -> str:
        """Returns what to give as --input for a candidate."""
        return storage.join(self.given, finding.input) if finding.input else self.given


def recognize(uri: str, output: str = "") -> Recognition:
    """Returns what is known of a folder, or of a file in it, after a bounded look.

    Args:
        uri: of the folder or file, as the user wrote it.
        output: of the dataset, if known: it may be in the folder, and is not looked into.

    Raises:
        ConfigError: if there is neither a folder nor a file, or it cannot be read.
    """
    with remote.budget(remote.CHECK_BUDGET_SEC):
        kind = input_places.kind_of(storage.normalize(uri))
    if kind is None:
        raise errors.ConfigError("input-not-found", f"there is neither a folder nor a file {uri!r}; check the address")
    if kind != storage.DIRECTORY:
        return _recognize_file(uri)
    probe = FolderProbe(storage.normalize(uri), exclude=storage.normalize(output) if output else "")
    if not (root := probe.look()).is_whole and not root.files and not root.folders:
        raise errors.ConfigError("folder-unreadable", f"{uri!r} cannot be listed; check the address")
    found = _search(probe)
    archives = root.ending(_ZIP)
    if archives and all(each.doubts for each in found):
        found = _find_in_archives(probe, archives) + found
    remarks = list(_remarks(probe, bool(found)))
    if not found:
        left_out.look_deeper(probe)
        images = Finding("image_folder", "", reads_images_alone=True)
        remarks += [*left_out.find(probe, images, _config_of(images)).doubts, *_against(probe, [])]
        remarks += left_out.images_in(probe)
    candidates = _contradict(probe, found)[:_MAX_SHOWN]
    if candidates and not archives:
        candidates[0] = _with_line_on_groups(probe, candidates[0])
    return Recognition(uri, tuple(candidates), tuple(remarks), _describe(probe))


def _recognize_file(uri: str) -> Recognition:
    """Returns what is known of one file: of a table, with the folder that it is in as the input."""
    address = storage.normalize(uri)
    name = posixpath.basename(address)
    probe = FolderProbe(posixpath.dirname(address))
    given = uri.rstrip("/").rpartition("/")[0] or ("/" if uri.startswith("/") else ".")
    found: list[Finding] = []
    if folder_probe.extension_of(name) == _ZIP:
        found = _find_in_archives(probe, [name])
    elif folder_probe.extension_of(name) in (*table_formats.FORMATS, ".txt"):
        found = [*_usable(detect_tables.find_in_file(probe, name))]
        found = [dataclasses.replace(each, input=name) if each.preset in left_out.OF_PIXELS else each for each in found]
    for by in _CONTAINERS if not found else ():
        found += _usable(format_of(by).detect_file(probe, name))
    remark = "" if found else table_heads.note_on_missing(probe, name)
    if remark:  # it is a table, and its images are elsewhere
        for above, root, path in _folders_above(given, address):
            if found := [*_usable(detect_tables.find_above(FolderProbe(root), path))]:
                return Recognition(above, tuple(sorted(found, key=_is_doubted)), (), name)
    return Recognition(given, tuple(sorted(found, key=_is_doubted)), (remark,) if remark else (), name)


def _folders_above(given: str, file: str) -> Iterator[tuple[str, str, str]]:
    """Yields the two folders above the one of a file: as the user would write it, its address, the file's path below.

    Args:
        given: the folder of the file as the user wrote it.
        file: address of the file.
    """
    folder = posixpath.dirname(file)
    scheme, mark, rest = given.rpartition("://")
    for _ in range(_LEVELS_ABOVE):
        folder = table_heads.parent_of(folder)
        if not folder:
            return
        rest = posixpath.normpath(f"{rest}/..")
        yield f"{scheme}{mark}{rest}", folder, file.removeprefix(storage.join(folder, ""))


def _search(probe: FolderProbe) -> list[Finding]:
    """Returns the findings for the root, or for the first folders below it that hold a data set."""
    first = level = [""]
    findings: list[Finding] = []
    doubted: list[Finding] = []  # below the root, of the first level that has some
    for _ in range(_DEPTH):
        every = [each for at in level for each in _find_at(probe, at)]
        found = [each for each in every if not _is_part_of_doubted(each, doubted, every)]
        if level == first or not all(each.doubts for each in found):
            above = [each for each in findings if layout_signs.NO_CLASSES not in each.doubts]
            findings = [*found, *above]
        doubted = doubted or [each for each in found if {*each.doubts} != {layout_signs.NO_CLASSES}]
        if not level or not all(each.doubts for each in findings):
            break
        below = [probe.look(at).below(name) for at in level for name in probe.look(at).folders[:_MAX_INNER]]
        level = below[:_MAX_INNER]
    return [*findings, *(each for each in doubted if each not in findings)]


def _is_part_of_doubted(finding: Finding, above: Sequence[Finding], beside: Sequence[Finding]) -> bool:
    """Returns whether a finding is on one split or one of several folders, and its preset for all of them in doubt.

    Args:
        finding: on a folder.
        above: findings on the folders above it.
        beside: findings on the folders of its level.
    """
    holder, name = posixpath.split(finding.input)
    alike = [each for each in beside if each.preset == finding.preset and posixpath.dirname(each.input) == holder]
    is_one = folder_probe.split_meant(name) is not None or len(alike) > 1
    if finding.doubts or finding.reads_images_alone:
        return False
    if is_one and any(each.preset == finding.preset and each.input == holder for each in above):
        return True
    by = _config_of(finding).source.by
    first = [each.input for each in above if each.input and _config_of(each).source.by == by]  # of several folders
    return any(holder == posixpath.dirname(each) or f"{finding.input}/".startswith(f"{each}/") for each in first)


def _find_in_archives(probe: FolderProbe, names: Sequence[str]) -> list[Finding]:
    """Returns the findings for zip archives of a folder: for the images in one, or for the folders that all make."""
    inside = archive_probe.ArchiveProbe(probe.root, names)
    kind = f"{names[0]} is a zip archive" if len(names) == 1 else f"{plural.count(len(names), 'zip archive')}"
    originals = {re.sub(r" ?\(\d+\)(?=\.zip$)", "", name) for name in names}
    copies = [f"{name_some(names)} may be copies: plan one alone"] if len(originals) < len(names) else []
    found = []
    for each in _contradict(inside, _search(inside)):
        place = inside.input_of(each.input)
        evidence = f"{kind}: {each.evidence}"
        if not _reads_archives(each):
            note = f"{each.preset} does not read archives: unpack {name_some(names)}, and plan the folder"
            each = dataclasses.replace(each, settings={}, doubts=(note,), input=names[0])
        elif place is not None:
            each = dataclasses.replace(each, input=place)
        else:
            each = dataclasses.replace(each, settings={"source.by": "zip", **each.settings})
        found.append(dataclasses.replace(each, evidence=evidence, doubts=(*each.doubts, *copies)))
    return found


def _with_line_on_groups(probe: FolderProbe, finding: Finding) -> Finding:
    line = layout_signs.line_on_groups(probe, finding, _config_of(finding))
    if line is None:
        return finding
    if line.is_doubt:
        return dataclasses.replace(finding, doubts=(*finding.doubts, line.text))
    return dataclasses.replace(finding, notes=(*finding.notes, line.text))


def _reads_archives(finding: Finding) -> bool:
    """Returns whether a preset needs nothing but the images: no tables, masks or lists beside them."""
    config = _config_of(finding)
    return (
        config.source.by == "files"
        and config.source.masks.image is None
        and not config.split.lists
        and not config.label.lists
    )


def _find_at(probe: FolderProbe, at: str) -> list[Finding]:
    found: list[Finding] = []
    for sign in SIGNS:
        if sign in _OF_LITTLE_EVIDENCE and not all(each.doubts for each in found):
            continue
        for each in _usable(sign(probe, at)):
            found.append(each if each.input or not at else dataclasses.replace(each, input=at))
    return list({(each.preset, each.input): each for each in reversed(found)}.values())[::-1]


def _usable(findings: Iterator[Finding]) -> Iterator[Finding]:
    """Yields the findings whose presets exist, without settings that these have already."""
    known = config_lib.preset_names()
    for each in findings:
        if each.preset in known:
            yield dataclasses.replace(each, settings=_needed(each))


def _needed(finding: Finding) -> dict[str, Any]:
    fields = config_lib.read_fields(finding.preset)
    needed = {key: value for key, value in finding.settings.items() if config_lib.value_at(fields, key) != value}
    renamed = config_lib.value_at(fields, _RENAME) or {}
    if needed.get(_RENAME, {}).items() <= renamed.items():  # the preset renames more names, which are not there
        needed.pop(_RENAME, None)
    return needed


def _is_doubted(finding: Finding) -> bool:
    return bool(finding.doubts)


def _contradict(probe: FolderProbe, findings: Sequence[Finding]) -> list[Finding]:
    """Returns findings with what contradicts them: first those without doubts, last those of a part of the images."""
    alone = [each for each in findings if each.reads_images_alone]
    others = {each.preset: each for each in reversed(findings) if not each.reads_images_alone}.values()
    is_sure = not all(each.doubts for each in others)  # then it says more of images alone than their sidecars
    against = [*_against(probe, others)] if alone else []
    as_pairs = [
        f"pairs may be meant: {each.evidence}" for each in findings if each.preset == "pairs" and not each.doubts
    ]
    whole, parts = list[Finding](), list[Finding]()
    for each in findings:
        left = left_out.find(probe, each, _config_of(each))
        if is_sure and each.reads_images_alone:
            left = left_out.LeftOut(left.elsewhere, elsewhere=left.elsewhere)
        doubts = [*each.doubts]
        outlines = [change.key for change in each.often if change.key.endswith(".masks")]
        notes = [f"outlines of objects are not stored unless {key}=true" for key in outlines]
        notes = [*each.notes, *notes, *left.notes]
        if each.preset == _SYNSETS:  # folders of synsets are classes, whatever else is there
            notes += left.doubts
        else:
            doubts += left.doubts
        if each.reads_images_alone:
            doubts += against
        if "source.manifest.path" in each.settings:
            doubts += as_pairs
        settings = each.settings
        if left.lists:
            settings = {key: value for key, value in settings.items() if not key.startswith("split")}
            settings["split"] = {"by": "lists", "lists": dict(left.lists)}
            notes.append(f"the splits are those of {folder_probe.and_list([*left.lists.values()])}")
        found = dataclasses.replace(each, settings=settings, notes=tuple(notes), doubts=tuple(dict.fromkeys(doubts)))
        (parts if each.input and left.elsewhere else whole).append(found)
    of_all = {each.preset for each in whole}
    return [*sorted(whole, key=_is_doubted), *(each for each in parts if each.preset not in of_all)]


def _against(probe: FolderProbe, others: Collection[Finding]) -> Iterator[str]:
    """Yields what contradicts that images alone are to be read, given the findings that read more."""
    if all(each.doubts for each in others):
        yield from mask_folders.notes_on_masks(probe)
    yield from mask_folders.notes_on_volumes(probe)
    if not others:
        yield from table_heads.notes_on_tables(probe)
    yield from (f"{each.preset} may be meant, which reads more than images: {each.evidence}" for each in others)


def _config_of(finding: Finding) -> config_lib.Config:
    return config_lib.load_config(finding.preset, overrides_of(finding))


def _remarks(probe: FolderProbe, is_known: bool) -> Iterator[str]:
    yield from unread_files.describe(probe, is_known)
    for format in map(format_of, FORMATS):
        yield from format.remarks(probe)


def _describe(probe: FolderProbe) -> str:
    """Returns what a folder holds, in a few words: `3 folders, 12 .py, 1 .md`, and what is below if it has no files."""
    root = folder = probe.look()
    for _ in range(_DEEPEST):
        if folder.files or not folder.folders:
            break
        folder = probe.look(folder.below(folder.folders[0]))
    kinds = collections.Counter(folder_probe.extension_of(name) or "without extension" for name in folder.files)
    shown = [root.count(len(root.folders), "folder")] if root.folders else []
    shown += [f"{number:,} {kind}" for kind, number in kinds.most_common(5)]
    return (", ".join(shown) or "nothing") + (f" in {folder.path}" if folder.path and kinds else "")


# --- in words --------------------------------------------------------------------------------------------------------


def overrides_of(finding: Finding) -> list[str]:
    """Returns the settings of a candidate in the form of --set: `split.by=hash`."""
    return [f"{key}={as_yaml(value)}" for key, value in finding.settings.items()]


def as_yaml(value: Any) -> str:
    """Returns a value in YAML on one line."""
    text = yaml.safe_dump(value, default_flow_style=True, width=1 << 20, allow_unicode=True, sort_keys=False)
    return text.removesuffix("\n").removesuffix("\n...")


def words_of(recognition: Recognition, finding: Finding) -> list[str]:
    """Returns the options by which a command takes a candidate."""
    words = ["--config", finding.preset, "--input", recognition.address(finding)]
    for each in overrides_of(finding):
        words += ["--set", each]
    return words


def options_of(recognition: Recognition, finding: Finding) -> str:
    """Returns the same as one text: `--config yolo --input data`."""
    return plural.shell_command(words_of(recognition, finding))


def explain(recognition: Recognition, config: config_lib.Config) -> str:
    """Returns which preset fits a folder better than the config that failed; "" if none does."""
    reads_more = config.source.by not in ("files", "listing")  # than images and their folders
    candidates = [
        each for each in recognition.candidates if not (reads_more and each.reads_images_alone and each.doubts)
    ]
    better = [each for each in candidates if _differs(each, config)]
    if not better or len(better) < len(candidates):
        return "; ".join(recognition.remarks)
    first = better[0]
    more = f"; also possible: {', '.join(dict.fromkeys(each.preset for each in better[1:]))}" if better[1:] else ""
    return f"{recognition.given!r} looks like the preset {first.preset}: {first.evidence}: use " + (
        f"{options_of(recognition, first)}{more}"
    )


def _differs(finding: Finding, config: config_lib.Config) -> bool:
    """Returns whether a candidate reads a folder in another way than a config."""
    fields = config_lib.load_config(finding.preset, overrides_of(finding))
    if fields.source.by == config.source.by == "manifest":  # another table, if the one of the config is not there
        path = config.source.manifest.path
        place = storage.join(storage.normalize(str(config.source.uri)), str(path))
        return isinstance(path, str) and not any(mark in path for mark in "*?[") and input_places.kind_of(place) is None
    return (fields.source.by, fields.label.by) != (config.source.by, config.label.by)


def advise(config: config_lib.Config) -> str:
    """Returns which preset fits the input of a config that cannot read it; "" if nothing is known."""
    if config.source.is_own:
        return ""
    try:
        return explain(recognize(str(config.source.uri), str(config.output.uri or "")), config)
    except (OSError, ValueError, errors.ConfigError):  # the error that is being explained matters more
        return ""


# --- the preset of a `plan` command that names none -------------------------------------------------------------------

_OWN_SECTIONS = ("source", "label")  # settings of these say how the input is to be read


class Choice(NamedTuple):
    """The text that a command prints before the plan and after it."""

    rows: tuple[tuple[str, str], ...] = ()
    next: tuple[str, ...] = ()  # commands
    error: str = ""  # if nothing fits beyond doubt: there is no plan


def choose(known: argparse.Namespace) -> Choice:
    """Sets the config and the settings of a command that names no config, if one preset fits beyond doubt.

    A command with a config, with settings of `source` or `label`, or for a snapshot is left as it is.
    """
    ways = "source.storage_options."  # these say how the input is reached
    sections = {each.partition("=")[0].partition(".")[0].strip() for each in known.set if not each.startswith(ways)}
    if known.config is not None or known.update or not known.input or sections.intersection(_OWN_SECTIONS):
        return Choice()
    if files.split_glob(known.input)[1] != files.EVERYTHING:
        return Choice()
    try:
        found = recognize(known.input, known.output or "")
    except OSError:  # the listing says so
        return Choice()
    chosen = found.sure
    if chosen is None:
        return _list_candidates(found)
    own = known.set
    known.config, known.input = chosen.preset, found.address(chosen)
    known.set = [*overrides_of(chosen), *own]
    words = ["imagebeam", "convert", *words_of(found, chosen)]
    for each in own:
        words += ["--set", each]
    commands = [plural.shell_command([*words, "--output", known.output or "OUTPUT"])]
    if chosen.settings:
        commands.append(f"{plural.shell_command(['imagebeam', 'init', found.given])} writes these settings as a config")
    return Choice(tuple(describe(found, chosen)), tuple(commands))


_HOW_TO_NAME_ONE = (
    "name one with --config (docs/recipes has a page for each kind of source); --config image_folder takes each folder "
    "directly in it as a class"
)


def describe(found: Recognition, chosen: Finding) -> list[tuple[str, str]]:
    """Returns rows on a candidate: the preset and why, what was guessed, and which others are possible."""
    where = f" in {found.address(chosen)}" if chosen.input else ""
    rows = [("recognized" if found.sure is chosen else "possible", f"{chosen.preset}{where}: {chosen.evidence}")]
    rows += [("settings", each) for each in overrides_of(chosen)]
    rows += [("note", each) for each in (*chosen.notes, *chosen.doubts, *found.remarks)]
    others = [each for each in found.candidates if each is not chosen]
    for each in others:
        where = f" in {found.address(each)}" if each.input != chosen.input else ""
        rows.append(("also possible", f"{each.preset}{where}: {each.evidence}"))
    return rows


def _list_candidates(found: Recognition) -> Choice:
    """Returns the choice for a folder that no preset fits beyond doubt: lists what it may be."""
    rows = []
    for each in found.candidates:
        rows.append(("possible", f"{each.preset}: {each.evidence}"))
        rows += [("  note", note) for note in (*each.doubts, *each.notes)]
        rows.append(("  options", options_of(found, each)))
    rows += [("note", each) for each in found.remarks]
    if not found.candidates:
        command = plural.shell_command(["imagebeam", "plan", "--config", "image_folder", "--input", found.given])
        error = f"no preset recognizes {found.given!r} ({found.seen}): {_HOW_TO_NAME_ONE}: {command}"
        return Choice(tuple(rows), error=error)
    names = " or ".join(dict.fromkeys(each.preset for each in found.candidates))
    init = plural.shell_command(["imagebeam", "init", found.given])
    error = f"{found.given!r} may be {names}, but not beyond doubt: see the notes, give the options of one, or "
    return Choice(tuple(rows), error=f"{error}write a config with {init}")
