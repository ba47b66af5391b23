"""Writes shards with plain `beam.io.WriteToTFRecord`, for those who want Beam's sink and nothing else.

Every record crosses a shuffle, and Beam names the shards by random ids: order and content of the shards differ from
run to run, and a run that died starts from the beginning. The examples, the catalog and the checks are the same.
"""

import dataclasses
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.io.filesystem import CompressionTypes
from apache_beam.io.filesystems import FileSystems

from imagebeam import catalog, errors, records, storage, verify_shards
from imagebeam.transforms import dataset_settings, elements, step, write_shards
from imagebeam.transforms.shard import read_images, shard_writer, statistics

_LOGGER = logging.getLogger(__name__)
_COMPRESSION = {"none": CompressionTypes.UNCOMPRESSED, "gzip": CompressionTypes.GZIP}


def require_file_system(output: str) -> None:
    """Checks that Beam's sink can write to an address.

    Raises:
        ConfigError: if Beam has no file system for it here.
    """
    try:
        FileSystems.get_filesystem(output)
    except ValueError as e:
        raise errors.ConfigError(
            "output-no-file-system",
            f"output.writer is 'beam', and Beam has no file system here for --output {output!r}: "
            "pip install 'imagebeam[dataflow]', or leave output.writer out",
        ) from e


class _Counted(NamedTuple):
    """Counts of one shard. A class: Beam encodes the strings of a dict as UTF-8, which a label may not be."""

    rejected: Mapping[str, int]
    statistics: Mapping[str, Any]
    further: int  # as in WrittenShard


def _encode(
    element: write_shards.PlacedShard, settings: dataset_settings.DatasetSettings, plan: elements.DatasetPlan
) -> Iterator[Any]:
    """(shard, [run]) -> (split, record), and (name of the planned shard, its counts)."""
    (split, shard_index), runs = element
    num_shards = plan.splits[split].num_shards
    name = settings.shard_name(split, shard_index, num_shards)
    task = shard_writer.ShardTask(split, shard_index, num_shards, tuple(runs))
    recipe, policy = settings.recipe(plan), settings.policy_of(plan)
    counts, rejects, further = statistics.StatisticsBuilder(), [], 0
    for ref, image in read_images.read_images(task.refs(), policy, settings.read_ahead):
        further += ref.frame > 0
        if isinstance(image, elements.Reject):
            rejects.append(image)
            continue
        counts.add(ref.classes, statistics.measure(ref.uri, image, recipe.count_objects(ref, image)))
        counts.add_dropped(image.dropped_objects)
        counts.dark.add(ref.key, image, policy.narrowing_level)
        yield split, b"".join(recipe.encode(ref, image))
    rejected = shard_writer.store_rejects(settings.paths.staging(plan.fingerprint), name, rejects)
    yield beam.pvalue.TaggedOutput("counted", (name, _Counted(rejected, counts.build(), further)))


class _AdoptFn(beam.DoFn):
    """(name, Beam's file and the counts) -> WrittenShard; moves the file into the staging folder."""

    def __init__(self, settings: dataset_settings.DatasetSettings):
        self._settings = settings

    def process(
        self, element: tuple[str, Mapping[str, Iterable[Any]]], plan: elements.DatasetPlan
    ) -> Iterator[elements.WrittenShard]:
        if plan.action != "write":
            return
        name, found = element
        (file,), (counted,) = found["files"], found["counted"]
        staging = self._settings.paths.staging(plan.fingerprint)
        store = storage.storage_of(staging)
        store.make_directories(staging)
        staged = storage.join(staging, name)
        if store.exists(file):  # a bundle that runs twice has moved it already
            store.rename(file, staged)
        store.sync(staged)
        shard = self._read_again(name, staged)
        split = records.ShardName.parse(name).split
        written = elements.WrittenShard(split, shard, counted.rejected, counted.statistics, further=counted.further)
        step.count_written(written)
        _LOGGER.debug("wrote %s: %d records, %d bytes", name, shard.records, shard.bytes)
        yield written

    def _read_again(self, name: str, staged: str) -> catalog.Shard:
        with storage.storage_of(staged).open_read(staged) as file:
            offsets = [record.offset for record in records.read_records(file, self._settings.compression)]
        num_bytes, crc = verify_shards.checksum_file(staged)
        shard = catalog.Shard(name, len(offsets), num_bytes, crc)
        if self._settings.compression == "none":
            shard = shard_writer.store_index(os.path.dirname(staged), shard, offsets)
        return shard


def _is_of(element: tuple[str, bytes], split: str) -> bool:
    return element[0] == split


def _shard_name_template(num_shards: int) -> str:
    """Returns Beam's pattern for the names that `records.ShardName` formats."""
    digits = records.num_digits(num_shards)
    return f"-{'S' * digits}-of-{'N' * digits}"


def _name_file(path: str) -> tuple[str, str]:
    return os.path.basename(path), path


@dataclasses.dataclass
class WriteShardsWithBeam(step.Step):
    """Reads, checks and encodes every image, and hands the records to `beam.io.WriteToTFRecord`, split by split."""

    plan: beam.PCollection[elements.DatasetPlan]  # one element
    settings: dataset_settings.DatasetSettings

    def expand(self, placed: beam.PCollection[write_shards.PlacedShard]) -> beam.PCollection[elements.WrittenShard]:
        plan = beam.pvalue.AsSingleton(self.plan)
        encoded = placed | "Encode" >> beam.FlatMap(_encode, settings=self.settings, plan=plan).with_output_types(
            tuple[str, bytes], counted=tuple[str, _Counted]
        ).with_outputs("counted", main="records")
        files = []
        for split in self.settings.declared_splits or ():
            num_shards = self.settings.sizing.shards_of(split, 0, 0)
            files.append(
                encoded.records
                | f"Of {split}" >> beam.Filter(_is_of, split)
                | f"Records of {split}" >> beam.Values()
                | f"Write {split}"
                >> beam.io.WriteToTFRecord(  # path
                    storage.join(self.settings.paths.beam_folder(self.settings.report), split),
                    file_name_suffix=self.settings.suffix,
                    num_shards=num_shards,
                    shard_name_template=_shard_name_template(num_shards),
                    compression_type=_COMPRESSION[self.settings.compression],
                )
                | f"Name {split}" >> beam.Map(_name_file).with_output_types(tuple[str, str])
            )
        named = files | "AllFiles" >> beam.Flatten()
        return (
            {"files": named, "counted": encoded.counted}
            | "Join" >> beam.CoGroupByKey()  # (name, {files: [path], counted: [_Counted]})
            | "Adopt" >> beam.ParDo(_AdoptFn(self.settings), plan=plan).with_output_types(elements.WrittenShard)
        )
