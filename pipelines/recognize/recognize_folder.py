"""Recognizes which preset reads an unknown folder or file, and which settings it needs."""

from __future__ import annotations

import collections
import dataclasses
import posixpath
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import yaml

from imagebeam import errors, plural, shell_words, storage
from imagebeam.pipelines.config import model as config_lib
from imagebeam.pipelines.recognize import (
    archive_survey,
    array_signs,
    container_signs,
    group_signs,
    layout_signs,
    left_out,
    mask_pairs,
    mask_signs,
)
from imagebeam.transforms.formats.base_format import FORMATS, format_of
from imagebeam.transforms.formats.tables import detect_tables, find_root, table_formats, table_places
from imagebeam.transforms.sources import split_folders
from imagebeam.transforms.sources.folder_probe import Finding, Folder, FolderProbe, Strength, extension_of, name_some

Sign: TypeAlias = Callable[[FolderProbe, str], Iterator[Finding]]  # called with a folder below the root of the survey

# The presets that each sign may name. A new preset is added here. One that does not exist, or not yet, is never named.
SIGNS: Mapping[Sign, tuple[str, ...]] = {
    **{format.detect: format.PRESETS for format in map(format_of, FORMATS)},
    mask_signs.find_masks: ("segmentation", "carvana", "camvid"),
    array_signs.find_idx: ("mnist", "emnist"),
    array_signs.find_arrays: ("cifar10", "cifar100", "svhn", "npz", "hdf5"),
    container_signs.find_tars: ("webdataset", "cifar10", "cifar100"),
    container_signs.find_tfrecords: ("tfrecord",),
    container_signs.find_parquet: ("parquet",),
    layout_signs.find_lists_of_names: ("food101", "oxford_pets"),
    layout_signs.find_classes_in_splits: ("imagenet", "imagefolder"),
    layout_signs.find_splits_in_classes: ("image_folder",),
    layout_signs.find_classes: ("image_folder",),
    layout_signs.find_labels_in_names: ("cats_dogs", "imagenet_files", "utkface", "image_folder"),
    layout_signs.find_unlabelled: ("imagefolder", "image_folder"),
}
_SIGNS_OF_FILES = (array_signs.find_in_file, container_signs.find_in_file)  # called with its name
_OF_PIXELS = ("fer2013", "mnist_csv")  # presets whose input is the table itself
_ZIP = ".zip"
_DEPTH = 4  # levels of folders that are searched for the data set
_LEVELS_ABOVE = 2  # of a table, in which its images are looked for
_MAX_INNER = 8  # folders of one level
_MAX_SHOWN = 6  # candidates
_POINTER = b"version https://git-lfs"
_ARCHIVES = ("archive: unpack it", "archives: unpack them")
_UNREAD = {  # by extension, in words: of one file, and of several
    **dict.fromkeys(
        (".mp4", ".avi", ".mov", ".mkv", ".webm"),
        (
            "video, which is not read: save its frames as images",
            "videos, which are not read: save their frames as images",
        ),
    ),
    **dict.fromkeys(
        (".dcm", ".nii", ".mha"),
        ("medical image, which is not read: save it as PNG", "medical images, which are not read: save them as PNG"),
    ),
    **dict.fromkeys((".7z", ".rar", ".xz", ".bz2"), _ARCHIVES),
}
_UNKNOWN = dict.fromkeys((".zip", ".tgz", ".gz"), _ARCHIVES)  # unless a preset reads them


class Recognition(NamedTuple):
    """What is known of a folder."""

    given: str  # its address as the user wrote it
    candidates: tuple[Finding, ...]  # the best one first
    remarks: tuple[str, ...]  # on what no preset reads
    seen: str  # what is in the folder, in a few words

    @property
    def sure(self) -> Finding | None:
        """The candidate that fits beyond doubt: no other one is as strong; None if there is none."""
        if not self.candidates or self.candidates[0].strength < Strength.LIKELY:
            return None
        is_alone = len(self.strongest) == 1 and not self.candidates[0].is_doubtful
        return self.candidates[0] if is_alone else None

    @property
    def strongest(self) -> tuple[Finding, ...]:
        """The candidates that are as strong as the best one."""
        return tuple(each for each in self.candidates if each.strength == self.candidates[0].strength)

    def address(self, finding: Finding) -> str:
        """Returns what to give as --input for a candidate."""
        return storage.join(self.given, finding.input) if finding.input else self.given


def recognize(uri: str, output: str = "") -> Recognition:
    """Returns what is known of a folder, or of a file in it, after a bounded look: see `survey`.

    Args:
        uri: of the folder or file, as the user wrote it.
        output: of the dataset, if known: it may be in the folder, and is not looked into.

    Raises:
        ConfigError: if there is neither a folder nor a file, or it cannot be read.
    """
    kind = split_folders.kind_of(storage.normalize(uri))
    if kind is None:
        raise errors.ConfigError(f"there is neither a folder nor a file {uri!r}; check the address")
    if kind != storage.DIRECTORY:
        return _recognize_file(uri)
    survey = FolderProbe(storage.normalize(uri), exclude=storage.normalize(output) if output else "")
    if not (root := survey.look()).is_whole and not root.files and not root.folders:
        raise errors.ConfigError(f"{uri!r} cannot be listed; check the address")
    found = _search(survey)
    archives = root.ending(_ZIP)
    if archives and not any(each.strength >= Strength.LIKELY for each in found):
        found = _find_in_archives(survey, archives) + found
    remarks = list(_remarks(survey, bool(found)))
    if all(each.is_layout for each in found):
        remarks += [*left_out.notes_on_sidecars(survey, remarks), *left_out.notes_on_lists_of_images(survey)]
        remarks += [*mask_pairs.notes_on_masks(survey), *table_places.notes_on_tables(survey)]
    candidates = _in_order(found)[:_MAX_SHOWN]
    if candidates and not archives:
        candidates[0] = _with_note_on_groups(survey, candidates[0])
    return Recognition(uri, tuple(candidates), tuple(remarks), _describe(root))


def _recognize_file(uri: str) -> Recognition:
    """Returns what is known of one file: of a table, with the folder that it is in as the input."""
    address = storage.normalize(uri)
    name = posixpath.basename(address)
    survey = FolderProbe(posixpath.dirname(address))
    given = uri.rstrip("/").rpartition("/")[0] or ("/" if uri.startswith("/") else ".")
    found: list[Finding] = []
    if extension_of(name) == _ZIP:
        found = _find_in_archives(survey, [name])
    elif extension_of(name) in (*table_formats.FORMATS, ".txt"):
        found = [*_usable(detect_tables.find_in_file(survey, name))]
        found = [dataclasses.replace(each, input=name) if each.preset in _OF_PIXELS else each for each in found]
    for sign in _SIGNS_OF_FILES if not found else ():
        found += _usable(sign(survey, name))
    remark = "" if found else table_places.note_on_missing(survey, name)
    if remark:  # it is a table, and its images are elsewhere
        for above, root, path in _folders_above(given, address):
            if found := [*_usable(detect_tables.find_above(FolderProbe(root), path))]:
                return Recognition(above, tuple(_in_order(found)), (), name)
    return Recognition(given, tuple(_in_order(found)), (remark,) if remark else (), name)


def _folders_above(given: str, file: str) -> Iterator[tuple[str, str, str]]:
    """Yields the two folders above the one of a file: as the user would write it, its address, the file's path below.

    Args:
        given: the folder of the file as the user wrote it.
        file: address of the file.
    """
    folder = posixpath.dirname(file)
    scheme, mark, rest = given.rpartition("://")
    for _ in range(_LEVELS_ABOVE):
        folder = find_root.parent_of(folder)
        if not folder:
            return
        rest = posixpath.normpath(f"{rest}/..")
        yield f"{scheme}{mark}{rest}", folder, file.removeprefix(storage.join(folder, ""))


def _search(survey: FolderProbe) -> list[Finding]:
    """Returns the findings for the root, or for the first folders below it that hold a data set."""
    first = level = [""]
    findings: list[Finding] = []
    for _ in range(_DEPTH):
        found = [each for at in level for each in _find_at(survey, at)]
        if level == first or any(each.strength >= Strength.LIKELY for each in found):
            findings = found
        if not level or any(each.strength >= Strength.LIKELY for each in findings):
            break
        below = [survey.look(at).below(name) for at in level for name in survey.look(at).folders[:_MAX_INNER]]
        level = below[:_MAX_INNER]
    return findings


def _find_in_archives(survey: FolderProbe, names: Sequence[str]) -> list[Finding]:
    """Returns the findings for zip archives of a folder: for the images in one, or for the folders that all make."""
    inside = archive_survey.ArchiveProbe(survey.root, names)
    kind = f"{names[0]} is a zip archive" if len(names) == 1 else f"{plural.count(len(names), 'zip archive')}"
    found = []
    for each in _search(inside):
        place = inside.input_of(each.input)
        evidence = f"{kind}: {each.evidence}"
        if not _reads_archives(each):
            note = f"{each.preset} does not read archives: unpack {name_some(names)}, and plan the folder"
            each = dataclasses.replace(each, strength=Strength.POSSIBLE, settings={}, notes=(note,), input=names[0])
        elif place is not None:
            each = dataclasses.replace(each, input=place)
        else:
            each = dataclasses.replace(each, settings={"source.by": "zip", **each.settings})
        found.append(dataclasses.replace(each, evidence=evidence))
    return found


def _with_note_on_groups(survey: FolderProbe, finding: Finding) -> Finding:
    config = config_lib.load_config(finding.preset, overrides_of(finding))
    note = group_signs.note_on_groups(survey, finding, config)
    return dataclasses.replace(finding, notes=(*finding.notes, note)) if note else finding


def _reads_archives(finding: Finding) -> bool:
    """Returns whether a preset needs nothing but the images: no tables, masks or lists beside them."""
    config = config_lib.load_config(finding.preset, overrides_of(finding))
    return (
        config.source.by == "files"
        and config.source.masks.image is None
        and not config.split.lists
        and not config.label.lists
    )


def _find_at(survey: FolderProbe, at: str) -> list[Finding]:
    found: list[Finding] = []
    for sign in SIGNS:
        if sign is layout_signs.find_unlabelled and any(each.strength >= Strength.LIKELY for each in found):
            continue
        for each in _usable(sign(survey, at)):
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
    needed = {key: value for key, value in finding.settings.items() if _value_at(fields, key) != value}
    if not needed.get("split.rename", True):  # the names that the preset renames are not there
        del needed["split.rename"]
    return needed


def _value_at(fields: Any, key: str) -> Any:
    for part in key.split("."):
        fields = fields.get(part) if isinstance(fields, dict) else None
    return fields


def _in_order(findings: Sequence[Finding]) -> list[Finding]:
    """Returns findings, the strongest first. Files with annotations are stronger than the folders they are in."""
    if any(each.strength is Strength.CERTAIN and not each.is_layout for each in findings):
        findings = [
            dataclasses.replace(each, strength=Strength.POSSIBLE) if each.is_layout else each for each in findings
        ]
    return sorted(findings, key=lambda each: -each.strength)


def _remarks(survey: FolderProbe, is_known: bool) -> Iterator[str]:
    images = survey.with_images("", _DEPTH)
    if images is not None and images.files[images.images[0]] < 300:
        path = images.below(images.images[0])
        if survey.head(path, 64).startswith(_POINTER):
            yield f"{path} is a pointer of Git LFS, not an image: run git lfs pull in the clone first"
    root = survey.look()
    unread = _UNREAD if is_known else {**_UNREAD, **_UNKNOWN}
    counts = collections.Counter(
        unread[extension] for name in root.files if (extension := extension_of(name)) in unread
    )
    for name in left_out.via_files(survey):
        yield f"{name} is of the VGG Image Annotator, which is not read: export it from there as COCO's JSON"
    for format in map(format_of, FORMATS):
        yield from format.remarks(survey)
    yield from (f"{number:,} {several if number > 1 else one}" for (one, several), number in counts.items())


def _describe(root: Folder) -> str:
    """Returns what a folder holds, in a few words: `3 folders, 12 .py, 1 .md`."""
    kinds = collections.Counter(extension_of(name) or "without extension" for name in root.files)
    shown = [root.count(len(root.folders), "folder")] if root.folders else []
    return ", ".join([*shown, *(f"{number:,} {kind}" for kind, number in kinds.most_common(5))]) or "nothing"


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
    return shell_words.join(words_of(recognition, finding))


def explain(recognition: Recognition, config: config_lib.Config) -> str:
    """Returns which preset fits a folder better than the config that failed; "" if none does."""
    better = [each for each in recognition.candidates if _differs(each, config)]
    if not better or len(better) < len(recognition.candidates):
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
        return (
            isinstance(path, str) and not any(mark in path for mark in "*?[") and split_folders.kind_of(place) is None
        )
    return (fields.source.by, fields.label.by) != (config.source.by, config.label.by)


def advise(config: config_lib.Config) -> str:
    """Returns which preset fits the input of a config that cannot read it; "" if nothing is known."""
    try:
        return explain(recognize(str(config.source.uri), str(config.output.uri or "")), config)
    except (OSError, ValueError, errors.ConfigError):  # the error that is being explained matters more
        return ""
