"""Receives the images of a pipeline: references as they are, bytes into files where the writers of shards read them.

The files with bytes are temporary. A bundle that runs twice leaves one that nobody reads; the commit removes all.
"""

import collections
import contextlib
import dataclasses
import hashlib
import io
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.transforms import window
from apache_beam.typehints import decorators

from imagebeam import errors, storage
from imagebeam.pipelines import job as job_lib
from imagebeam.pipelines import write_references
from imagebeam.transforms import dataset_settings, elements, list_images, step, summaries
from imagebeam.transforms.packed import packed_file
from imagebeam.transforms.sources import image_source, table_rows


class EncodedImage(NamedTuple):
    """An image as bytes, with what a row of a table says of it: the config names the columns, as for a table.

    `label` and `split` are the columns "label" and "split", if they are given: `label: {by: column, column: label}`.
    """

    key: str
    """Unique; also the path of the image: its end is image/filename, its folders are for label.by: directory."""
    data: bytes
    """Of an encoded image, such as a JPEG."""
    label: Any = None
    """A class, a number, or a list of classes."""
    split: str = ""
    columns: Mapping[str, Any] = {}
    """Further columns by name."""


_MAX_FILE_BYTES = 128 << 20
_BUFFER_BYTES = 1 << 20


class SpillFile:
    """A file that takes the bytes of images. Not thread-safe."""

    def __init__(self, folder: str):
        self.name = f"{secrets.token_hex(8)}.zip"
        self._uri = storage.join(folder, self.name)
        self._stack = contextlib.ExitStack()
        store = storage.storage_of(folder)
        store.make_directories(folder)
        self._file = io.BufferedWriter(self._stack.enter_context(store.write_file(self._uri)).file, _BUFFER_BYTES)
        self.num_bytes = 0

    def add(self, image: EncodedImage) -> elements.ImageRef:
        """Appends an image, and returns its reference, which is good once the file is finished."""
        header = packed_file.pack_member(image.data)
        self._file.write(header)
        self._file.write(image.data)
        length = len(header) + len(image.data)
        self.num_bytes += length
        return elements.ImageRef(
            image.key,
            packed_file.member_address(self._uri, image.key),
            len(image.data),
            offset=self.num_bytes - length,
            length=length,
            sha256=hashlib.sha256(image.data).hexdigest(),
        )

    def finish(self) -> None:
        """Writes the rest; the file appears at its address."""
        self._file.flush()
        self._file.detach()
        self._stack.close()


@dataclasses.dataclass(frozen=True)
class ElementRules:
    """What the elements of a pipeline must be like, and how those with bytes become references."""

    settings: dataset_settings.DatasetSettings
    fields: table_rows.RowFields
    label_by: str
    split_by: str
    needs_sizes: bool  # whether the sizes of images decide the number of shards

    def check_ref(self, ref: elements.ImageRef) -> elements.ImageRef:
        """Returns a reference with its full address.

        Raises:
            ConfigError: if it is not as the config says.
        """
        if len(ref.columns) != len(self.settings.columns):
            raise errors.ConfigError(
                "reference-columns",
                f"the reference {ref.key!r} has {len(ref.columns)} values in columns, and the config has "
                f"{len(self.settings.columns)}: {', '.join(self.settings.columns) or 'none'}; give one for each, in "
                "this order",
            )
        if ref.size < 0 and self.needs_sizes:
            raise errors.ConfigError(
                "reference-without-size",
                f"the reference {ref.key!r} has no size, and the sizes decide the number of shards: give the bytes of "
                "each image, or set output.num_shards or output.examples_per_shard",
            )
        return ref._replace(uri=storage.normalize(ref.uri))

    def check_image(self, image: EncodedImage) -> None:
        """Checks an image that came as bytes.

        Raises:
            ConfigError: if it is not as the config says.
        """
        for name, value, column, by in (
            ("label", image.label, self.fields.label, self.label_by),
            ("split", image.split or None, self.fields.split, self.split_by),
        ):
            if value is not None and column != name:
                taken = f"{name}.by is {by}" if column is None else f"{name}.column is {column!r}"
                raise errors.ConfigError(
                    "value-unused",
                    f"image {image.key!r} comes with the {name} {value!r}, and {taken}: set {name}: {{by: column, "
                    f"column: {name}}}, or leave it out of the images",
                )
        is_text = isinstance(image.key, str) and image.key and image.key.encode(errors="replace").decode() == image.key
        if not is_text or not isinstance(image.data, bytes):
            raise errors.ConfigError(
                "element-wrong",
                f"an image has the key {image.key!r} and data of type {type(image.data).__name__}: give text that is "
                "not empty, and bytes",
            )

    def fill(self, ref: elements.ImageRef, image: EncodedImage) -> elements.ImageRef:
        """Returns the reference with what the row says.

        Raises:
            BadRowError: if a value cannot be parsed.
            MissingValueError: the same if the config says that this fails the run.
        """
        given = {"label": image.label, "split": image.split or None}
        return self.fields.fill(ref, {**image.columns, **{k: v for k, v in given.items() if v is not None}})


def rules_of(job: job_lib.Job) -> ElementRules:
    """Returns what the elements of a pipeline must be like for a job."""
    sizing = job.settings.sizing
    needs_sizes = sizing.num_shards is None and sizing.examples_per_shard is None
    return ElementRules(job.settings, job.fields, job.settings.label_by, job.split.by, needs_sizes)


class _ReceiveFn(beam.DoFn):
    """ImageRef, RefBatch or EncodedImage -> RefBatch; rejects, tallies, and the files with bytes."""

    def __init__(self, rules: ElementRules):
        self._rules = rules

    def start_bundle(self) -> None:
        self._file: SpillFile | None = None
        self._found = image_source.ListingBuilder()
        self._num_listed = 0
        self._spilled: list[write_references.Spilled] = []

    def process(self, element: Any, run_id: str) -> Iterator[Any]:
        if isinstance(element, step.RefBatch):
            self._num_listed += len(element)
            yield element
            return
        self._num_listed += 1
        if isinstance(element, EncodedImage):
            self._receive(element, run_id)
            if self._file is not None and self._file.num_bytes >= _MAX_FILE_BYTES:
                yield from self._take()
        elif isinstance(element, elements.ImageRef):
            self._found.add(self._rules.check_ref(element))
            if self._file is None and self._found.is_full:
                yield from self._take()
        else:
            raise errors.ConfigError(
                "element-wrong",
                f"an element of the pipeline is a {type(element).__name__}: give ImageRef or EncodedImage of "
                "imagebeam.beam",
            )

    def _receive(self, image: EncodedImage, run_id: str) -> None:
        self._rules.check_image(image)
        try:
            filled = self._rules.fill(elements.ImageRef(image.key, image.key), image)
        except table_rows.BadRowError as e:
            self._found.add(elements.Reject(image.key, image.key, "list", e.reason, e.detail))
            return
        except table_rows.MissingValueError as e:
            self._found.problems.append(f"image {image.key!r}: {e}")
            return
        if self._file is None:
            self._file = SpillFile(self._rules.settings.paths.spill(run_id))
        place = self._file.add(image)
        where = {name: getattr(place, name) for name in ("uri", "size", "offset", "length", "sha256")}
        self._found.add(filled._replace(**where))

    def _take(self) -> Iterator[Any]:
        """Finishes the file with bytes, and yields what was received."""
        if self._file is not None:
            self._file.finish()
            yield beam.pvalue.TaggedOutput("spilled", (self._file.name, self._file.num_bytes))
            self._file = None
        refs, rejects, problems = self._found.refs, self._found.rejects, tuple(self._found.problems)
        yield from step.batch(refs)
        yield from (beam.pvalue.TaggedOutput("rejects", each) for each in rejects)
        step.count_rejects(collections.Counter(each.reason.value for each in rejects))
        step.count(step.LISTED, self._num_listed)
        yield beam.pvalue.TaggedOutput("tallies", summaries.Tally(self._num_listed, {}, problems))
        self._found, self._num_listed = image_source.ListingBuilder(), 0

    def finish_bundle(self) -> Iterator[Any]:
        for found in self._take():
            if isinstance(found, beam.pvalue.TaggedOutput):
                yield beam.pvalue.TaggedOutput(found.tag, window.GlobalWindows.windowed_value(found.value))
            else:
                yield window.GlobalWindows.windowed_value(found)


class ReceivedImages(NamedTuple):
    """The outputs of ReceiveImages."""

    listed: list_images.ListedImages
    spilled: beam.PCollection[write_references.Spilled]


@dataclasses.dataclass
class ReceiveImages(step.Step):
    """The images of a pipeline -> batches of references without labels and splits, as they are listed elsewhere."""

    rules: ElementRules
    run_id: beam.PCollection[str]  # one element

    @decorators.no_annotations  # Beam warns of an output that is a NamedTuple
    def expand(self, images: beam.PCollection[Any]) -> ReceivedImages:
        outputs: Mapping[str, Any] = {
            "rejects": elements.Reject,
            "tallies": summaries.Tally,
            "spilled": write_references.Spilled,
        }
        tags: Sequence[str] = tuple(outputs)
        found = (
            images
            | "InOneWindow" >> beam.WindowInto(window.GlobalWindows())
            | "Receive"
            >> beam.ParDo(_ReceiveFn(self.rules), run_id=beam.pvalue.AsSingleton(self.run_id))
            .with_output_types(step.RefBatch, **outputs)
            .with_outputs(*tags, main="images")
        )
        listed = list_images.ListedImages(step.typed(found.images), found.rejects, found.tallies)
        return ReceivedImages(listed, found.spilled)
