"""Lists the images of a source, on workers and in parallel over folders."""

import collections
import dataclasses
import zlib
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.typehints import decorators

from imagebeam import storage
from imagebeam.transforms import elements, rank_references, sort_intervals, step, summaries
from imagebeam.transforms.shard import writer_processes
from imagebeam.transforms.sort_intervals import SortedRun
from imagebeam.transforms.sources import files, image_source, reference_rules
from imagebeam.transforms.summaries import PartialRanking


class ListedImages(NamedTuple):
    """The outputs of ListImages, and of steps that reject some of its images."""

    images: beam.PCollection[step.RefBatch]
    rejects: beam.PCollection[elements.Reject]
    tallies: beam.PCollection[summaries.Tally]
    ranked: "rank_references.RankedReferences | None" = None  # images that are not among `images`


def _key_by_content(element: Any) -> tuple[int, Any]:
    if isinstance(element, files.Directory):
        content = f"{element.path}/{element.start}".encode("utf-8", "surrogateescape")
    elif isinstance(element, image_source.Listing):
        element = element.packed()
        content = element.packed_refs
    else:  # a RowBatch, which its first row tells from all others
        content = ascii((element.table, element.rows[0])).encode()
    return zlib.crc32(content), element


def _drop_key(element: tuple[int, Iterable[Any]]) -> Iterable[Any]:
    return element[1]


class _Spread(beam.PTransform):
    """Spreads elements over the workers like beam.Reshuffle, but by keys that a retried bundle computes again."""

    def expand(self, values: beam.PCollection[Any]) -> beam.PCollection[Any]:
        return (
            values
            | "Key" >> beam.Map(_key_by_content).with_output_types(tuple[int, Any])
            | "Group" >> beam.GroupByKey()  # (key, [Directory | Listing])
            | "DropKey" >> beam.FlatMap(_drop_key).with_output_types(Any)
        )


def _begin(start: bytes, begun: str) -> bytes:
    storage.storage_of(begun).write_whole(begun, b"", durable=False)
    return start


def _start(_: bytes, source: Any) -> Iterator[files.Directory]:
    """Yields the root folder of the source, so that the job graph stays small whatever the size of the input."""
    yield source.start()


def _list_directory(element: Any, source: Any, recursive: bool) -> Iterator[Any]:
    """Lists folders. Listings made by an earlier step pass through unchanged."""
    if isinstance(element, files.Directory):
        yield from source.list_directory(element, recursive)
    else:
        yield element


def _read_table(_: bytes, source: image_source.ImageSource) -> Iterator[image_source.Listing]:
    yield from source.list_all()


def _read_rows(_: bytes, source: image_source.RowSource) -> Iterator[image_source.RowBatch | image_source.Listing]:
    """Reads the rows of a table; their images are not looked up yet."""
    yield from source.list_rows()


def _look_up(element: Any, source: image_source.RowSource) -> Iterator[image_source.Listing]:
    """Looks up the images of rows. Listings pass through unchanged."""
    yield source.look_up(element) if isinstance(element, image_source.RowBatch) else element


def _list_in_process(_: bytes, task: reference_rules.ListingTask, writers: str) -> Iterator[image_source.Listing]:
    """Takes the listing that a writer process of the launcher makes of the whole source, with the rules applied."""
    pool = writer_processes.find(writers)
    assert pool is not None
    yield from pool.submit(reference_rules.list_whole, task, writer_processes.try_again).result()


def _open_listing(element: image_source.Listing) -> Iterator[Any]:
    """A listing -> references, rejects and tally; sorted runs and rankings if it is ranked."""
    yield from step.batch(elements.unpack_refs(element.packed_refs))
    for reject in element.rejects:
        yield beam.pvalue.TaggedOutput("rejects", reject)
    step.count_rejects(collections.Counter(reject.reason.value for reject in element.rejects))
    listed = element.num_refs + len(element.rejects)
    step.count(step.LISTED, listed)
    tally = summaries.Tally(listed, element.skipped, element.problems, element.lists, element.features)
    yield beam.pvalue.TaggedOutput("tallies", tally)
    if element.ranked is not None:
        for run in element.ranked.runs:
            yield beam.pvalue.TaggedOutput("runs", run)
        yield beam.pvalue.TaggedOutput("rankings", element.ranked.ranking)


def _apply(refs: step.RefBatch, rules: reference_rules.ReferenceRules) -> Iterator[Any]:
    """References -> those with labels and splits; rejects; what was found about label.lists."""
    found = rules.apply(image_source.Listing(elements.UnpackedRefs(refs), len(refs), (), {}, ()))
    yield from step.batch(elements.unpack_refs(found.packed_refs))
    for reject in found.rejects:
        yield beam.pvalue.TaggedOutput("rejects", reject)
    step.count_rejects(collections.Counter(reject.reason.value for reject in found.rejects))
    yield beam.pvalue.TaggedOutput("tallies", summaries.Tally(0, found.skipped, found.problems, found.lists))


@decorators.with_input_types(step.RefBatch)
@dataclasses.dataclass
class ApplyRules(step.Step):
    """Gives references their labels and splits, as far as no other image decides them."""

    rules: reference_rules.ReferenceRules

    @decorators.no_annotations  # Beam warns of an output that is a NamedTuple
    def expand(self, refs: beam.PCollection[step.RefBatch]) -> ListedImages:
        outputs: dict[str, Any] = {"rejects": elements.Reject, "tallies": summaries.Tally}
        found = refs | "Apply" >> beam.FlatMap(_apply, rules=self.rules).with_output_types(
            step.RefBatch, **outputs
        ).with_outputs(*outputs, main="images")
        return ListedImages(step.typed(found.images), found.rejects, found.tallies)


@dataclasses.dataclass
class ListImages(step.Step):
    """Yields a reference for every image of the source, in batches, and counts everything else that is there.

    Labels and splits that need no other image are found where the images are listed.

    Folders are spread over the workers twice, at the root and one level below, which fits label/image and
    split/label/image. Deeper folders are listed by the worker that has their parent folder. Where a storage can list a
    range of names, a large folder is cut into ranges, which are spread like folders. The rows of a table are read by
    one worker, and spread before their images are looked up. If the launcher started writer processes, one of them
    lists everything, and may rank the images too: see `reference_rules`.
    """

    source: image_source.ImageSource
    rules: reference_rules.ReferenceRules = reference_rules.NO_RULES
    order: sort_intervals.HashOrder | None = None  # in which a writer process may rank the images; None: not there
    begun: str = ""  # address of an empty file that the first worker writes; "" for none

    @decorators.no_annotations  # Beam warns of an output that is a NamedTuple
    def expand(self, pbegin: beam.pvalue.PBegin) -> ListedImages:
        start = pbegin | "Start" >> beam.Impulse()
        if self.begun:
            start = start | "Begin" >> beam.Map(_begin, begun=self.begun).with_output_types(bytes)
        token = writer_processes.current_token()
        if token is not None:
            task = reference_rules.ListingTask(self.source, self.rules, self.order)
            listings = start | "ListInProcess" >> beam.FlatMap(_list_in_process, task, token).with_output_types(Any)
        elif self.source.spreads == "rows":
            listings = (
                start
                | "ReadRows" >> beam.FlatMap(_read_rows, source=self.source).with_output_types(Any)
                | "SpreadRows" >> _Spread()  # RowBatch | Listing
                | "LookUp" >> beam.FlatMap(_look_up, source=self.source).with_output_types(Any)  # Listing
            )
        elif self.source.spreads != "folders":
            listings = (
                start
                | "ReadTable" >> beam.FlatMap(_read_table, source=self.source).with_output_types(Any)
                | "SpreadListings" >> _Spread()  # Listing
            )
        else:
            one_level, all_levels = (
                beam.FlatMap(_list_directory, source=self.source, recursive=recursive).with_output_types(Any)
                for recursive in (False, True)
            )
            listings = (
                start
                | "Root" >> beam.FlatMap(_start, source=self.source).with_output_types(Any)  # Directory
                | "ListRoot" >> one_level
                | "SpreadFolders" >> _Spread()  # Directory | Listing
                | "ListFolders" >> one_level
                | "SpreadSubfolders" >> _Spread()  # Directory | Listing
                | "ListBelow" >> all_levels
            )
        outputs: dict[str, Any] = {"rejects": elements.Reject, "tallies": summaries.Tally}
        may_be_ranked = token is not None and self.order is not None
        if may_be_ranked:
            outputs |= {"runs": SortedRun, "rankings": PartialRanking}
        if token is None:
            listings = listings | "ApplyRules" >> beam.Map(self.rules.apply).with_output_types(Any)
        opened = listings | "OpenListings" >> beam.FlatMap(_open_listing).with_output_types(
            step.RefBatch, **outputs
        ).with_outputs(*outputs, main="images")
        ranked = rank_references.RankedReferences(opened.runs, opened.rankings) if may_be_ranked else None
        return ListedImages(step.typed(opened.images), opened.rejects, opened.tallies, ranked)
