"""A bucket in memory, which only lists: for tests of what asks it for pages and ranges of names."""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence

from imagebeam import storage


class Bucket:
    """Objects in memory, listed as gs:// lists a folder: in the order of names, in pages, folders between the files."""

    is_local = False

    def __init__(self, names: Sequence[str], page_entries: int, early_folders: bool = False):
        self.names = sorted(names)
        self.page_entries = page_entries
        self.early_folders = early_folders  # like fake-gcs-server: all folders that follow are in each page
        self.num_pages = self.num_probes = self.num_looks = 0

    def list_range(self, uri: str, start: str, end: str) -> Iterator[list[storage.Entry]]:
        prefix = f"{uri.removeprefix('stub://b').strip('/')}/".lstrip("/")
        assert "/" not in start + end
        relative = [name[len(prefix) :] for name in self.names if name.startswith(prefix)]
        entries: dict[str, storage.Entry] = {}
        for name in relative:
            if name < start or (end and name >= end):
                continue
            first, slash, _ = name.partition("/")
            kind = storage.FILE if not slash else storage.DIRECTORY if first else storage.SPECIAL
            entries[f"{first}{slash}"] = storage.Entry(first, kind, 1, 1, (0, hash(prefix + first)))
        self.num_pages += 1
        listed = sorted(entries)
        folders = [name for name in listed if name.endswith("/")]
        paged = [name for name in listed if not name.endswith("/")] if self.early_folders else listed
        for first_index in range(0, max(1, len(paged)), self.page_entries):
            self.num_pages += first_index > 0
            page = paged[first_index : first_index + self.page_entries]
            early = [name for name in folders if not page or first_index == 0 or name >= page[0]]
            yield [entries[name] for name in (*page, *(early if self.early_folders else ()))]

    def first_name(self, uri: str, start: str, end: str) -> str | None:
        self.num_probes += 1
        prefix = f"{uri.removeprefix('stub://b').strip('/')}/".lstrip("/")
        relative = sorted(name[len(prefix) :] for name in self.names if name.startswith(prefix))
        index = bisect.bisect_left(relative, start)
        if index == len(relative) or (end and relative[index] >= end):
            return None
        name, slash, _ = relative[index].partition("/")
        return f"{name}{slash}"

    def stat(self, uri: str) -> storage.Entry:
        name = uri.removeprefix("stub://b").strip("/")
        self.num_looks += 1
        if name in self.names:
            return storage.Entry(name.rpartition("/")[2], storage.FILE, 1, 1, (0, 0))
        if not name or any(other.startswith(f"{name}/") for other in self.names):
            return storage.Entry("", storage.DIRECTORY, 0, 0, (0, 1))
        raise FileNotFoundError(f"there is no {uri}")

    def read(self, uri: str, *_: int) -> bytes:
        return b"\xff\xd8\xff"
