"""Shows a run to the user: one line while it runs, a table at the end."""

from __future__ import annotations

import abc
import contextlib
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from imagebeam import catalog as catalog_lib
from imagebeam import plural, snapshots, storage
from imagebeam.pipelines.messages import json_log, terminal
from imagebeam.transforms import dataset_settings, elements, summaries
from imagebeam.transforms.classes import class_names
from imagebeam.transforms.duplicates import duplicate_counts
from imagebeam.transforms.output import output_folder
from imagebeam.transforms.plan import run_report
from imagebeam.transforms.shard import shard_writer

if TYPE_CHECKING:
    from typing_extensions import Self

_LOGGER = "imagebeam.pipelines.progress"  # in lines of JSON, which users select by this name
_TERMINAL_SEC = 0.25  # between two updates
_PLAIN_SEC = 10.0  # the same, where the output is not a terminal
_JSON_SEC = 30.0  # the same, in a log of JSON
_REMOTE_SEC = 5.0  # between two listings of a staging folder that cost requests
_MAX_NAMED = 5  # classes in a table


class ShownLine(abc.ABC):
    """Keeps one line on a stream up to date; prints plain lines if the stream is not a terminal."""

    def __init__(self, stream: TextIO | None = None, every_sec: float | None = None):
        """Shows a line, looking at it every `every_sec` seconds."""
        self._every_sec = every_sec
        self._doing = ""
        self._since = 0.0
        self._stream = stream or sys.stderr  # looked up now: tests and callers replace it after this module is imported
        self._terminal = self._stream.isatty()
        self._stop = threading.Event()
        self._writing = threading.Lock()
        self._start = time.monotonic()
        self._thread = threading.Thread(target=self._watch, name="imagebeam-progress", daemon=True)
        self._fields: dict[str, Any] = {}  # of the line that was made last, for a log of JSON; "stage" among them

    @abc.abstractmethod
    def line(self) -> str:
        """Returns the line."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        if self._terminal:
            self._stream.write("\r\x1b[K")
            self._stream.flush()

    def say(self, text: str) -> None:
        """Prints a line that stays."""
        if isinstance(self._stream, json_log.JsonLines):
            self._stream.log(text)
            return
        with self._writing:
            print(("\r\x1b[K" if self._terminal else "") + terminal.printable(text), file=self._stream, flush=True)

    def _watch(self) -> None:
        shown = stage = ""
        last = 0.0
        while not self._stop.wait(_TERMINAL_SEC if self._every_sec is None else self._every_sec):
            try:
                line = self.line()
            except OSError:  # if it persists, the run itself reports it
                continue
            now = time.monotonic()
            if isinstance(self._stream, json_log.JsonLines):
                if self._fields.get("stage", "") != stage or now - last >= _JSON_SEC:
                    self._stream.log(line, "INFO", _LOGGER, **self._fields)
                    last, stage = now, self._fields.get("stage", "")
                continue
            with self._writing:
                if self._terminal:
                    columns = terminal.columns_of(self._stream) or terminal.COLUMNS
                    self._stream.write("\r\x1b[K" + line[: columns - 1])
                    self._stream.flush()
                elif now - last >= _PLAIN_SEC and line != shown and now - self._start >= _PLAIN_SEC / 2:
                    print(line, file=self._stream, flush=True)
                    last, shown = now, line

    @contextlib.contextmanager
    def doing(self, what: str) -> Iterator[None]:
        """Shows `what` as the activity of the run, before it lists."""
        self._since, self._doing = time.monotonic(), what
        try:
            yield
        finally:
            self._doing = ""


class Progress(ShownLine):
    """Watches the staging folder of a run.

    It looks only at files, so it works the same for every runner whose output this machine can read.
    """

    def __init__(
        self,
        settings: dataset_settings.DatasetSettings,
        stream: TextIO | None = None,
        count_begun: Callable[[], int] = lambda: 0,
    ):
        """Watches a run; `count_begun` returns the number of images written to shards that are not finished."""
        is_local = storage.storage_of(settings.output).is_local
        super().__init__(stream, None if is_local else _REMOTE_SEC)
        self._settings = settings
        self._count_begun = count_begun
        self._is_analysed = settings.analyze is None
        self._writing_since = 0.0
        self._images_before = self._images = 0
        self._done: dict[str, int] = {}  # shard -> files in it, also rejected ones
        self._plan: elements.DatasetPlan | None = None

    def line(self) -> str:
        """Returns the state of the run in one line."""
        if doing := self._doing:
            self._fields = {"stage": "starting"}
            return f"{doing}... {time.monotonic() - self._since:.0f} s"
        if self._plan is None and not self._find_plan():
            self._fields = {"stage": "listing"}
            return f"listing images... {time.monotonic() - self._start:.0f} s"
        assert self._plan is not None
        self._fields = {"stage": "writing"}
        if not self._is_analysed and not self._find_analysis(self._plan):
            return f"tf.Transform analyses the columns... {time.monotonic() - self._writing_since:.0f} s"
        planned_shards = sum(split.num_shards for split in self._plan.splits.values())
        planned_images = sum(split.num_records for split in self._plan.splits.values())
        self._count()
        # a shard that ends at this moment may be counted as neither begun nor done, or as both
        begun = min(sum(self._done.values()) + self._count_begun(), planned_images)
        images = self._images = max(begun, self._images)
        elapsed = time.monotonic() - self._writing_since
        rate = (images - self._images_before) / elapsed if elapsed > 0 else 0.0
        self._fields |= {
            "shards_done": len(self._done),
            "shards_planned": planned_shards,
            "images_done": images,
            "images_planned": planned_images,
            "images_per_sec": round(rate, 1),
        }
        if len(self._done) == planned_shards:
            self._fields["stage"] = "committing"
        left = f"{(planned_images - images) / rate:,.0f} s left" if rate > 0 else "..."
        return (
            f"shards {len(self._done):,}/{planned_shards:,}  images {images:,}/{planned_images:,}  "
            f"{rate:,.0f} images/s  {left}"
        )

    def _find_plan(self) -> bool:
        report = run_report.read_report(self._settings.report)
        if report is None:
            return False
        self._plan = run_report.decode_plan(report["plan"])
        self._count()
        self._images_before = sum(self._done.values())
        self._writing_since = time.monotonic()
        return True

    def _find_analysis(self, plan: elements.DatasetPlan) -> bool:
        """Returns whether tf.Transform's output is staged, so that shards are being written."""
        staging = self._settings.paths.staging(plan.fingerprint)
        if plan.action != "write" or storage.storage_of(staging).exists(
            storage.join(staging, output_folder.STAGED_FILES)
        ):
            self._is_analysed, self._writing_since = True, time.monotonic()
        return self._is_analysed

    def _count(self) -> None:
        """Reads the description of each finished shard, once."""
        assert self._plan is not None
        staging = self._settings.paths.staging(self._plan.fingerprint)
        store = storage.storage_of(staging)
        try:
            for entry in store.list_directory(staging):
                if entry.name.endswith(shard_writer.DONE_SUFFIX) and entry.name not in self._done:
                    with contextlib.suppress(ValueError, TypeError, KeyError):  # a power failure left it empty
                        written = shard_writer.decode_written(store.read(storage.join(staging, entry.name)))
                        num_images = written.shard.records + sum(written.rejected.values())
                        self._done[entry.name] = num_images - written.further  # the plan counts files
        except OSError:
            return  # does not exist yet, or was moved by the commit


def name_some(labels: Sequence[str]) -> str:
    """Joins the first names of a list."""
    return ", ".join(labels[:_MAX_NAMED]) + (", ..." if len(labels) > _MAX_NAMED else "")


def describe_passed_over(passed_over: Mapping[str, int]) -> str:
    """Joins counts by kind."""
    return ", ".join(f"{number:,} {kind.replace('_', ' ')}" for kind, number in passed_over.items()) or "nothing"


def print_table(rows: Sequence[tuple[str, str]], stream: TextIO | None = None) -> None:
    """Prints rows of a name and a value, aligned; on a terminal, long values are broken between words.

    Values that are copied from the screen into a command are never broken.
    """
    width = max(len(name) for name, _ in rows)
    output = stream or sys.stdout
    for name, value in rows:
        text = terminal.printable(value)
        if name.strip() not in _COPIED:
            text = terminal.wrap(text, output, width + 2)
        print(f"{name:<{width}}  {text}", file=output)


_COPIED = ("settings", "options")  # names of rows


def describe_changes(facts: Mapping[str, Any]) -> str:
    """Returns how a snapshot came about: how many images were added, changed, removed and left unchanged.

    Args:
        facts: as in `Catalog.snapshot`.
    """
    if facts.get("compacted"):
        return f"compacted from {facts['compacted']}"
    return describe_counts(facts)


def describe_counts(counts: Mapping[str, Any]) -> str:
    """Returns how many images were added, changed, removed and left unchanged, and how many were read and rejected."""
    rejected = ["rejected"] if counts.get("rejected") else []
    return ", ".join(f"{counts[name]:,} {name}" for name in (*summaries.CHANGES, *rejected))


def summary_rows(
    catalog: catalog_lib.Catalog, output: str, seconds: float | None, folder: str | None = None
) -> list[tuple[str, str]]:
    """Returns the rows of the table at the end of a run.

    Args:
        catalog: of the dataset.
        output: its address; of a snapshot, the folder of all snapshots.
        seconds: that the run took; None if that is not known.
        folder: the folder of the catalog, if it is known.
    """
    counts = catalog.counts
    passed_over = describe_passed_over(counts.passed_over)
    rows = [("listed", f"{plural.count(counts.listed, 'image')} (passed over: {passed_over})")]
    folder_of_catalog = folder or output
    if facts := catalog.snapshot:
        rows.append(("snapshot", f"{facts['name']}: {describe_changes(facts)}"))
        folder_of_catalog = folder or snapshots.folder_of(storage.normalize(output), facts["name"])
    for name, split in catalog.splits.items():
        parts = (
            plural.count(split.num_examples, "image"),
            plural.count(len(split.shards), "shard"),
            plural.format_bytes(split.num_bytes),
        )
        rows.append((f"  {name}", ", ".join(parts)))
    total = sum(counts.rejected.values())
    reasons = ", ".join(f"{reason} {number:,}" for reason, number in counts.rejected.items())
    rows.append(("rejected", f"{total:,}" + (f" ({reasons}; see {catalog_lib.REJECTS_FILE})" if total else "")))
    for kind, by_split in catalog.duplicates.items():
        see = f"; see {catalog_lib.DUPLICATES_FILE}" if by_split else ""
        dropped = " dropped" if catalog.config.get("duplicates", {}).get(kind) == "drop" else ""
        rows.append((f"{kind} duplicates", duplicate_counts.describe(by_split) + dropped + see))
    if catalog.label_kind == "class":
        rows.append(
            (
                "labels",
                f"{plural.count(len(catalog.labels), 'class')}, ids from {catalog.label_base}: "
                f"{name_some(catalog.labels)}",
            )
        )
    statistics = catalog_lib.load_statistics(folder_of_catalog)
    rows += [*_object_rows(statistics), *_unusual_rows(statistics)]
    if seconds is not None:
        num_read = counts.listed
        if catalog.snapshot:
            num_read = sum(catalog.snapshot.get(name, 0) for name in ("added", "changed", "rejected"))
        rows.append(("time", f"{seconds:.1f} s" + (f", {num_read / seconds:,.0f} images/s" if num_read else "")))
    rows.append(("output", output))
    return rows


def _object_rows(statistics: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns a row with the number of objects of each class; none if the images have no objects."""
    counts: Counter[str] = Counter()
    for split in statistics.values():
        counts.update(split.get(class_names.COUNTS, {}))
    if not counts:
        return []
    named = [f"{name} {number:,}" for name, number in counts.most_common()]
    return [("objects", f"{counts.total():,} of {plural.count(len(counts), 'class')}: {name_some(named)}")]


def _unusual_rows(statistics: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns rows on images that readers may not expect, from the `statistics.json` of a dataset."""
    names = ("orientations", "colorspaces", "reencoded", "turned", "misnamed", "dark", "dark_files")
    counted: dict[str, Counter[str]] = {name: Counter() for name in names}
    for split in statistics.values():
        for name, total in counted.items():
            total.update(split.get(name, {}))
    rows = []
    for name, label in _CHANGES.items():
        if counter := counted[name]:
            if name == "turned":
                rows.append((label, f"{plural.count(counter.total(), 'image')}: {_describe_turns(counter)}"))
                continue
            rows.append((label, f"{plural.count(counter.total(), 'image')} ({_most_common(counter)})"))
    if dark := counted["dark"]:
        files = [f"{key} ({highest:,})" for key, highest in sorted(counted["dark_files"].items())[:_MAX_NAMED]]
        # of PNGs whose bytes are kept, only a few are looked into
        at_least = "at least " if any(name.startswith("png") for name in dark) else ""
        count = f"{at_least}{plural.count(dark.total(), 'gray image')}"
        what = f"{count} of 16 bits with small numbers ({_most_common(dark)})"
        remedy = "nearly black with 8 bits; set image.white_level to their largest number, 255 at least"
        rows.append(("dark", f"{what}, such as {', '.join(files)}: {remedy}"))
    if turns := counted["orientations"].total():
        what = f"{plural.count(turns, 'image')} whose EXIF data ask for a rotation that was not applied"
        rows.append(("not upright", f"{what}; readers see the pixels as they are stored"))
    colorspaces = counted["colorspaces"]
    unusual = [(colorspaces[name], f"of {what}") for name, what in _UNUSUAL_COLORSPACES.items() if colorspaces[name]]
    if unusual:
        found = ", ".join(f"{plural.count(number, 'image')} {what}" for number, what in unusual)
        rows.append(("channels", f"{found}; readers that ask for 3 channels convert them"))
    return rows


def _describe_turns(counter: Counter[str]) -> str:
    """Returns how images lay by their orientation: `7 on the left side (EXIF 6), 5 upside down (EXIF 3)`."""
    return ", ".join(f"{number:,} {_TURNS.get(code, 'turned')} (EXIF {code})" for code, number in counter.most_common())


def _most_common(counter: Counter[str]) -> str:
    named = [f"{name}: {number:,}" for name, number in counter.most_common(_MAX_CAUSES)]
    return ", ".join(named) + (", ..." if len(counter) > _MAX_CAUSES else "")


_MAX_CAUSES = 6
_TURNS = {  # what an EXIF orientation says of the pixels
    "2": "mirrored",
    "3": "upside down",
    "4": "mirrored and upside down",
    "5": "mirrored and on the left side",
    "6": "on the left side",
    "7": "mirrored and on the right side",
    "8": "on the right side",
}
_CHANGES = {"turned": "turned", "reencoded": "re-encoded", "misnamed": "misnamed"}  # a row of the table for each
_UNUSUAL_COLORSPACES = {
    "GRAY_ALPHA": "2 channels (gray, transparency)",
    "RGBA": "4 channels (RGB, transparency)",
    "CMYK": "4 channels (CMYK)",
}
