"""Stores the images rejected before their shard was written, until the commit collects all rejects."""

import dataclasses
import zlib
from collections.abc import Iterable, Iterator

import apache_beam as beam

from imagebeam import errors, storage
from imagebeam.transforms import dataset_settings, elements, hashing
from imagebeam.transforms.shard import shard_writer

_NUM_FILES = 16  # each is sorted by one worker


def _key_by_file(reject: elements.Reject) -> tuple[int, elements.Reject]:
    return zlib.crc32(hashing.encode_key(reject.key)) % _NUM_FILES, reject


class _StoreFn(beam.DoFn):
    """(file index, [Reject]) -> name of the file in the staging folder."""

    def __init__(self, settings: dataset_settings.DatasetSettings):
        self._settings = settings

    def process(self, element: tuple[int, Iterable[elements.Reject]], plan: elements.DatasetPlan) -> Iterator[str]:
        if plan.action != "write" and plan.exit_code != errors.TooManyRejectsError.exit_code:
            # the output must stay as it is; Beam takes a comment behind `return` for a value, and warns
            return
        index, rejects = element
        name = f"early-{index:02d}{shard_writer.REJECTS_SUFFIX}"
        staging = self._settings.paths.staging(plan.fingerprint)
        store = storage.storage_of(staging)
        store.make_directories(staging)
        store.write_whole(storage.join(staging, name), shard_writer.encode_rejects(sorted(rejects)), durable=False)
        yield name


@dataclasses.dataclass
class StoreDeadLetters(beam.PTransform):
    """Writes rejects into files in the staging folder and yields the files' names."""

    settings: dataset_settings.DatasetSettings
    plan: beam.PCollection[elements.DatasetPlan]  # one element

    def __post_init__(self) -> None:
        super().__init__()

    def expand(self, rejects: beam.PCollection[elements.Reject]) -> beam.PCollection[str]:
        return (
            rejects
            | "KeyByFile" >> beam.Map(_key_by_file).with_output_types(tuple[int, elements.Reject])
            | "GroupByFile" >> beam.GroupByKey()  # (file index, [Reject])
            | "Store"
            >> beam.ParDo(_StoreFn(self.settings), plan=beam.pvalue.AsSingleton(self.plan)).with_output_types(str)
        )
