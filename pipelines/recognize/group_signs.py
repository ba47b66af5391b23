"""Signs in the names of images that several are of one subject, and do not belong into different splits."""

from __future__ import annotations

import collections
import posixpath
import re
from collections.abc import Sequence

from imagebeam import plural
from imagebeam.pipelines.config import model as config_lib
from imagebeam.transforms.sources.folder_probe import Finding, FolderProbe

# p012_slice03.png, video7_frame0010.jpg, scan4-tile-2.png: the subject, and what precedes the number of its image.
_NAMED = re.compile(r"(?i)(?P<subject>.*[^_\-. ])(?P<mark>[_\-. ]+(?:slice|frame|tile|patch|crop)[_\-. ]?)\d+\.\w+")
_BARE = re.compile(r"(?i)(?:slice|frame|tile|patch|crop)[_\-. ]?\d+\.\w+")  # frame0010.jpg: the folder is the subject
_NUMBERED = re.compile(r"[_\-. ]*\d+\.\w+")  # TCGA_12/TCGA_12_3.tif, after the name of the folder
_SYNSET = re.compile(r"n\d{8}")  # n01440764/n01440764_18.JPEG: a class of ImageNet
_MIN_FOLDERS = 3  # whose images have the name of the folder: two may be classes
_SHARE = 0.9  # of the images whose names must have one form
_MIN_EACH = 2  # images of a subject, on average
_SPLIT = "split={by: hash, fractions: {train: 0.9, validation: 0.1}, group: subject}"


def note_on_groups(survey: FolderProbe, finding: Finding, config: config_lib.Config) -> str:
    """Returns a note with the options that keep the images of a subject in one split; "" if nothing speaks for it.

    A config that takes the splits from the input, or reads paths by a pattern of its own, needs no note. Nothing more
    is listed for it.

    Args:
        survey: of the input.
        finding: on a data set in it.
        config: of the finding.
    """
    is_own = config.source.pattern is not None or config.split.group is not None
    if config.source.by != "files" or config.split.by not in ("hash", "none") or is_own:
        return ""
    above, rule = f"{finding.input}/" if finding.input else "", config.source.masks.rule
    paths = [folder.below(name) for folder in survey.seen() for name in folder.images]
    paths = [path.removeprefix(above) for path in paths if path.startswith(above)]
    paths = [path for path in paths if rule is None or rule.is_image(path)]
    found = _in_names(paths) or _in_folders(paths) or _in_names_of_folders(paths)
    if not found:
        return ""
    number, example, pattern = found
    subjects = plural.count(number, "subject") if _is_all(survey) else f"{number:,} or more subjects"
    is_class = config.label.by == "directory" and "/" not in posixpath.dirname(example) and pattern == _FOLDER
    options = [f"source.pattern={pattern}", _SPLIT, *(["label={by: none}"] if is_class else [])]
    subject = "a folder (if it is one subject, video or scan, and no class)" if is_class else "a subject"
    return (
        f"names of images such as {example} state {subjects}; to keep all images of {subject} "
        "in one split add " + " ".join(f"--set {plural.shell_word(each)}" for each in options)
    )


def _is_all(survey: FolderProbe) -> bool:
    """Returns whether all that is in the input was seen."""
    seen = survey.seen()
    paths = {folder.path for folder in seen}
    return all(each.is_whole and paths.issuperset(map(each.below, each.folders)) for each in seen)


_FOLDER = r"(?P<subject>.*)/[^/]+"


def _in_names(paths: Sequence[str]) -> tuple[int, str, str] | None:
    """Returns the number of subjects that names of files state, the first path, and the pattern."""
    forms: collections.defaultdict[str, dict[str, str]] = collections.defaultdict(dict)
    counts: collections.Counter[str] = collections.Counter()
    for path in paths:
        if match := _NAMED.fullmatch(posixpath.basename(path)):
            counts[match["mark"]] += 1
            forms[match["mark"]].setdefault(match["subject"], path)
    if not counts:
        return None
    mark, number = counts.most_common(1)[0]
    subjects = forms[mark]
    if number < _SHARE * len(paths) or len(subjects) < 2 or number < _MIN_EACH * len(subjects):
        return None
    # a file of another name is a subject of its own
    return len(subjects), next(iter(subjects.values())), rf"(?:.*/)?(?P<subject>[^/]+?)(?:{re.escape(mark)}\d+)?\.\w+"


def _in_folders(paths: Sequence[str]) -> tuple[int, str, str] | None:
    """Returns the same if files have names of numbers alone, so that each folder is a subject."""
    named = [path for path in paths if _BARE.fullmatch(posixpath.basename(path))]
    folders = {posixpath.dirname(path) for path in named}
    if not named or len(named) < _SHARE * len(paths) or len(folders) < 2 or len(named) < _MIN_EACH * len(folders):
        return None
    return len(folders), named[0], _FOLDER


def _in_names_of_folders(paths: Sequence[str]) -> tuple[int, str, str] | None:
    """Returns the same if files have the name of their folder, which has a number, and a number after it."""
    named = [path for path in paths if _has_name_of_folder(path)]
    folders = {posixpath.dirname(path) for path in named}
    is_rare = len(named) < _SHARE * len(paths) or len(named) < _MIN_EACH * len(folders)
    if len(folders) < _MIN_FOLDERS or is_rare:
        return None
    return len(folders), named[0], _FOLDER


def _has_name_of_folder(path: str) -> bool:
    folder, name = path.split("/")[-2:] if "/" in path else ("", path)
    has_number = any(map(str.isdigit, folder)) and not _SYNSET.fullmatch(folder)
    return has_number and name.startswith(folder) and _NUMBERED.fullmatch(name.removeprefix(folder)) is not None
