"""Images in a folder and in all folders below it."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from imagebeam import errors, storage
from imagebeam.storage import remote
from imagebeam.transforms.formats import base_format
from imagebeam.transforms.formats import zip as zip_format
from imagebeam.transforms.sources import files, image_source, source_places


@dataclasses.dataclass(frozen=True)
class Files(base_format.Format):
    """Image files below a folder; a zip archive that is given instead is read like the folder that it holds."""

    ABOUT: ClassVar[str] = "images in a folder and in all folders below it"
    PRESETS: ClassVar[tuple[str, ...]] = ()

    def gives(self) -> base_format.Gives:
        return base_format.Gives(folders=True, takes=frozenset({"include", "pattern", "masks"}))

    def open(self, request: base_format.Request) -> image_source.ImageSource:
        with remote.budget(remote.CHECK_BUDGET_SEC):
            if zip_format.is_archive(request.uri):
                return zip_format.Zip().open(request)
            root, include, kind = source_places.find_input(request.uri, request.include, request.output)
            if kind != storage.DIRECTORY:
                found = (base_format.format_of(by).advise_on_file(root) for by in base_format.FORMATS)
                advice = next(filter(None, found), "for a table of images set source.by=manifest")
                raise errors.ConfigError(f"--input {request.uri!r} is not a folder; {advice}")
            exclude = source_places.leave_out(request.output, root)
            return files.FilesSource(root, include, exclude, request.masks)
