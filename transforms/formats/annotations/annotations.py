"""Annotations in the syntaxes of data sets and labeling tools, in a file beside each image or in one of many images.

Syntaxes are in `syntaxes`; what they have in common, the source, the options and the search for files, is here and in
`row_tables` and `locate`.
"""

from __future__ import annotations

import dataclasses
import functools
import posixpath
import re
from collections.abc import Iterator
from typing import Any, ClassVar, Literal

from imagebeam import errors, storage
from imagebeam.storage import remote
from imagebeam.transforms.formats import base_format
from imagebeam.transforms.formats.annotations import locate, row_tables
from imagebeam.transforms.formats.annotations import syntax as syntax_lib
from imagebeam.transforms.formats.annotations.syntaxes import SYNTAXES
from imagebeam.transforms.images import image_objects
from imagebeam.transforms.sources import annotated_files, annotation_tables, folder_probe, image_source, input_places
from imagebeam.transforms.sources.folder_probe import Change, Finding

_Name: Any = Literal[tuple(SYNTAXES)]
_EVERYTHING = folder_probe.Bounds(folders=100_000, entries=1_000_000, all_entries=100_000_000, heads=100_000)
_FEW = 5  # folders beside those of splits that are looked into, if the syntax is not known
_OF_EACH = ("image_folder", "annotation_folder", "without_annotations")  # options for files of one image each
_OF_MANY = ("files", "image_name", "class_names", "unnamed")
_TEXTS = "class-descriptions"  # begins the names of Open Images' files of class names


@dataclasses.dataclass(frozen=True)
class Annotations(base_format.ObjectFormat):
    """Annotations of objects in one of many syntaxes."""

    ABOUT: ClassVar[str] = "images with annotations in one of many syntaxes"
    PRESETS: ClassVar[tuple[str, ...]] = ("annotations",)

    syntax: _Name | None = None
    """The syntax of the annotations. In a file for each image: `kitti`, `dota`, `visdrone`, `supervisely`,
    `segment_anything`. In files of many images: `wider_face`, `mot`, `open_images`, `vott` (boxes in CSV without sizes
    of images), `run_lengths` (masks in CSV), `createml`, `via`, `label_studio`, `cvat`."""
    files: base_format.PathsBySplit | None = None
    """Annotation files of many images below `source.uri`, by split. By default all of the syntax that are found."""
    images: base_format.PathsBySplit | None = None
    """Folders of images below `source.uri`, by split: for `files` one for each file. By
    default those that are found."""
    image_folder: str | None = None
    """For a file for each image: name of the folders of images, such as `image_2` of KITTI. The last one of this name
    in the path of an image is replaced by `annotation_folder`. By default as it is found."""
    annotation_folder: str | None = None
    """Name of the folders of annotation files, such as `label_2` of KITTI."""
    image_name: str | None = None
    """For `files`: path of an image in its folder, with `{name}` for its name in the file: by default the name itself.
    The extension, and zeros before a number, may be left out in the file."""
    class_names: str | None = None
    """For `files` whose classes are codes: a CSV file below `source.uri` with a code and a name on each line. For
    `open_images` by default the file `class-descriptions*.csv` at `source.uri`, if there is one."""
    masks: bool = False
    """If true, the mask of each object is stored, as a PNG of the image's size; with `run_lengths` it always is."""
    without_annotations: Literal["keep", "skip", "reject"] = "skip"
    """For a file for each image: what to do with an image without: keep it as an image without objects, skip it, or
    reject it."""
    unnamed: Literal["skip", "keep"] | None = None
    """For `files`: what to do with images in the folders that no file names: skip them, or keep them as images without
    objects. By default `mot` keeps them, and the others are skipped."""

    def __post_init__(self) -> None:
        if self.syntax is None:
            return
        syntax = SYNTAXES[self.syntax]
        wrong = _OF_EACH if syntax.FOLDERS is None else _OF_MANY
        if other := next((name for name in wrong if getattr(self, name) != getattr(Annotations, name)), None):
            kind = "one image each" if syntax.FOLDERS is None else "many images"
            raise ValueError(f"source.annotations.{other} is for files of {kind}, and {self.syntax} has none")
        counts = [{name: len(paths) for name, paths in (each or {}).items()} for each in (self.files, self.images)]
        if syntax.FOLDERS is None and counts[0] != counts[1]:
            raise ValueError(
                f"source.annotations.files has {counts[0] or 'nothing'}, source.annotations.images "
                f"{counts[1] or 'nothing'}; name the same splits in both, with a folder for each file"
            )
        if self.masks and not syntax.OUTLINES:
            raise ValueError(f"source.annotations.masks needs outlines, and {self.syntax} has boxes alone")

    @property
    def _stores_masks(self) -> bool:
        return self.masks or (self.syntax is not None and SYNTAXES[self.syntax].MASKS)

    def gives(self) -> base_format.Gives:
        more = SYNTAXES[self.syntax].MORE if self.syntax is not None else ()
        masks = ("object masks",) if self._stores_masks else ()
        features = frozenset({"objects", *more, *masks})
        return base_format.Gives(splits=True, features=features, refuses=(base_format.no_frames("annotations"),))

    def open(self, request: base_format.Request) -> image_source.ImageSource:
        if self.syntax is None:
            raise errors.ConfigError(
                "annotations-no-syntax",
                f"source.annotations.syntax is missing: set one of {', '.join(SYNTAXES)}; imagebeam plan "
                "--input FOLDER says which one a folder has",
            )
        syntax, root = SYNTAXES[self.syntax], request.uri
        input_places.require_folder(root, f"the one with the images and files of {syntax.TITLE}")
        reader = syntax_lib.RowReader(
            image_objects.ClassNames(()), syntax, self._stores_masks, self.outside == "reject"
        )
        with remote.budget(remote.CHECK_BUDGET_SEC):
            places = self._places(root, syntax)
        if syntax.FOLDERS is None:
            return self._open_tables(request, places, reader)
        images, annotations = places.folders
        source = annotated_files.AnnotatedFilesSource(
            root,
            tuple(input_places.Part(place.split, place.images) for place in places.places),
            self._rule(syntax, images, annotations),
            reader,
            exclude=input_places.leave_out(request.output, root),
            option="source.annotations",
            on_repeated_key="name each folder of images in one split (source.annotations.images)",
        )
        return source.with_classes(self.classes, self.base, functools.partial(syntax_lib.class_names, syntax))

    def _rule(self, syntax: syntax_lib.Syntax, images: str, annotations: str) -> annotated_files.PairRule:
        return annotated_files.PairRule(
            syntax.SUFFIXES[0], images, annotations, self.without_annotations, syntax.WHOLE_NAMES
        )

    def reads(self, probe: folder_probe.FolderProbe, at: str) -> base_format.Reads | None:
        syntax = SYNTAXES[self.syntax or ""]
        found = locate.find(syntax, probe, at, _FEW, is_known=False)
        if found is None:
            return None
        parts = (input_places.Part(each.split, each.images) for each in found.places)
        guessed = ("",) if len(found.places) >= _FEW else ()  # no more folders were looked into
        if syntax.FOLDERS is None:
            codes = (f"**/{syntax.CODES_FILE}",) if syntax.CODES_FILE else ()
            files = (f"{_TEXTS}*.csv", *codes, *(each.file for each in found.places))
            reads = base_format.Reads.of_parts(parts, files=files)._replace(guessed=guessed)
            named = _all_named(syntax, probe, at, found)
            return reads if named is None else reads.in_folders_of(named)
        files_of = self._rule(syntax, *found.folders).files_of
        return base_format.Reads.of_parts(parts, files_of)._replace(guessed=guessed)

    def _open_tables(
        self, request: base_format.Request, places: locate.Places, reader: syntax_lib.RowReader
    ) -> image_source.ImageSource:
        root = request.uri
        texts = self.class_names
        if texts is None and self.syntax == "open_images":
            names = input_places.names_in(root, storage.FILE, (".csv",))
            texts = next((name for name in names if name.startswith(_TEXTS)), None)
        source = row_tables.RowTablesSource(
            root,
            tuple(
                annotation_tables.AnnotatedSplit(each.split, storage.join(root, each.file), each.images)
                for each in places.places
            ),
            reader=reader,
            image_name=places.image_name,
            splits_by_subset=self.images is None,
            keeps_unnamed=(self.unnamed or reader.syntax.UNNAMED) == "keep",
            texts=() if texts is None else tuple(row_tables.read_texts(root, texts).items()),
        )
        with remote.budget(remote.CHECK_BUDGET_SEC):
            source.check()
            used = (each.images for each in places.places)
            source = dataclasses.replace(source, unread=input_places.find_unread(root, used, (), request.output))
        return source.with_classes(self.classes, self.base)

    def _places(self, root: str, syntax: syntax_lib.Syntax) -> locate.Places:
        """Returns where the files are: as the options say, or as they are found.

        Raises:
            ConfigError: if there are none.
        """
        if self.images is not None:
            files = self.files or {split: ("",) * len(folders) for split, folders in self.images.items()}
            places = tuple(
                locate.Place(split, input_places.path_below(folder), file)
                for split, folders in self.images.items()
                for folder, file in zip(folders, files[split])
            )
            found = locate.Places(places, (syntax.FOLDERS or (("images", "images"),))[0])
        else:
            probe = folder_probe.FolderProbe(root, _EVERYTHING)
            looked = locate.find(syntax, probe, "", _EVERYTHING.folders, is_known=True)
            if looked is None:
                raise errors.ConfigError(
                    "annotations-not-found",
                    f"{root!r} holds no files of {syntax.TITLE} ({' or '.join(syntax.SUFFIXES)}) with images: check "
                    "--input, or name them in source.annotations (files, images)",
                )
            found = looked
        images, annotations = found.folders
        folders = self.image_folder or images, self.annotation_folder or annotations
        return dataclasses.replace(found, folders=folders, image_name=self.image_name or found.image_name)

    @classmethod
    def detect(cls, probe: folder_probe.FolderProbe, at: str) -> Iterator[Finding]:
        """Finds the files of each syntax, with images that they are of."""
        looked = ((name, locate.find(each, probe, at, _FEW, is_known=False)) for name, each in SYNTAXES.items())
        found = {name: places for name, places in looked if places is not None}
        for name, places in found.items():
            others = [SYNTAXES[each].TITLE for each in found if each != name]
            also = [f"there are also files of {' and '.join(others)}: which are to be read?"] if others else []
            has_masks = SYNTAXES[name].OUTLINES and not SYNTAXES[name].MASKS
            often = (Change("source.annotations.masks", True, "also a mask of each object"),) if has_masks else ()
            doubts = (*places.doubts, *also)
            settings = {"source.annotations.syntax": name}
            named, notes = _names_of_codes(SYNTAXES[name], probe, at, places)
            notes = (*places.notes, *notes)
            yield Finding("annotations", places.evidence, settings | named, notes, often, doubts=doubts)
            return

    @classmethod
    def remarks(cls, probe: folder_probe.FolderProbe) -> Iterator[str]:
        for syntax in (each for each in SYNTAXES.values() if each.FOLDERS is None):
            for file in locate.naming_files(syntax, probe, "", _FEW):
                if file.fault:
                    yield f"{file.path} is of {syntax.TITLE}, and is not read: it {file.fault}"
                elif not locate.find_images(probe, "", file)[0] and not any(
                    file.names[0] in (*each.files, *each.stems) for each in probe.seen()
                ):
                    yield (
                        f"{file.path} is of {syntax.TITLE}, and the images that it names ({file.names[0]}, ...) are "
                        "not here: give the folder that holds both"
                    )


def _all_named(
    syntax: syntax_lib.Syntax, probe: folder_probe.FolderProbe, at: str, places: locate.Places
) -> list[str] | None:
    """Returns the paths of all images that files name; None if only the beginning of a file was looked at."""
    images = {probe.look(at).below(each.file): each.images for each in places.places}
    files = [each for each in locate.naming_files(syntax, probe, at, _FEW) if each.path in images]
    are_whole = all(len(probe.head(each.path)) < folder_probe.HEAD_BYTES for each in files)
    if not are_whole or len(files) < len(images) or places.image_name != locate.Places.image_name:
        return None
    return [posixpath.join(images[each.path], name) for each in files for name in each.names]


def _names_of_codes(
    syntax: syntax_lib.Syntax, probe: folder_probe.FolderProbe, at: str, places: locate.Places
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Returns the setting that names the file with names of classes that are codes, or a note if there is none."""
    root, file = probe.look(at), places.places[0].file
    head = probe.head(root.below(file)) if syntax.CODE else b""
    rows = syntax.first_rows(head, len(head) < folder_probe.HEAD_BYTES, is_known=True) or () if head else ()
    code = next((row.name for row in rows if row.name and re.fullmatch(syntax.CODE, row.name)), None)
    if code is None:
        return {}, ()
    beside = probe.look(posixpath.dirname(root.below(file)))
    above = probe.look(posixpath.dirname(beside.path)) if beside.path != at else root
    folders = [root, beside, above, *map(probe.look, map(above.below, above.folders[:_FEW]))]
    for path in [each.below(name) for each in folders for name in each.ending(".csv") if "class" in name.lower()]:
        if re.search(rf"^{re.escape(code)},".encode(), probe.head(path), re.MULTILINE):
            below = path.removeprefix(f"{at}/")
            return {} if below.startswith(_TEXTS) else {"source.annotations.class_names": below}, ()
    note = (
        f"the classes are codes, such as {code}, and no file was seen that names them: source.annotations.class_names"
    )
    return {}, (f"{note} takes a CSV file with a code and a name on each line",)
