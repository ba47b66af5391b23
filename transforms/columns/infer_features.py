"""Computes features of images by Beam's RunInference, before shards are written: `features.functions.KEY`.

Shard writers call a function of the user where they are, one process for each core. RunInference loads a model once for
each worker, and runners with accelerators give such steps their own workers. Here the images of a placed shard are
decoded, go through RunInference as they will be stored, and their features travel to the writers with the references.
"""

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import apache_beam as beam

from imagebeam.transforms import dataset_settings, elements, step, user_code, write_shards
from imagebeam.transforms.images import checked_image
from imagebeam.transforms.publish import commit_rights
from imagebeam.transforms.shard import feature_functions, read_images

Place = tuple[write_shards.ShardKey, int]  # shard, and rank of the image in its split
Shown = tuple[Place, tuple[Any, user_code.Reference]]  # pixels, and what is known of the image


def _show(element: write_shards.PlacedShard, plan: elements.DatasetPlan, settings: Any) -> Iterator[Shown]:
    """A placed shard -> its images as they will be stored; those that will be rejected are left to the writer."""
    key, runs = element
    policy, columns = settings.policy_of(plan), settings.functions.columns
    with commit_rights.renewed(plan):
        for rank, packed in sorted(runs):
            refs = elements.unpack_refs(packed)
            ranks = {ref.key: rank + number for number, ref in enumerate(refs)}
            for ref, image in read_images.read_images(refs, policy, settings.read_ahead):
                if isinstance(image, checked_image.Image):
                    with contextlib.suppress(checked_image.BadImageError):
                        pixels = feature_functions.decode(image)
                        yield (key, ranks[ref.key]), (pixels, user_code.reference_of(ref, columns))


def _with_name(element: tuple[Place, Any], name: str) -> tuple[write_shards.ShardKey, Any]:
    """A feature of an image -> (shard, (rank, name of the feature, value))."""
    (key, rank), result = element
    value = result.inference
    is_error = isinstance(value, checked_image.BadImageError)
    return key, (rank, name, (value.reason.value, value.detail) if is_error else bytes(value))


def _add(
    element: tuple[write_shards.ShardKey, Mapping[str, Iterable[Any]]], names: Sequence[str]
) -> Iterator[write_shards.PlacedShard]:
    """A placed shard and its features -> the same shard, its references with the features as further columns."""
    key, found = element
    values = {(rank, name): value for rank, name, value in found["computed"]}
    for runs in found["shards"]:
        changed = []
        for rank, packed in runs:
            refs = [
                ref._replace(columns=(*ref.columns, *(values.get((rank + number, name)) for name in names)))
                for number, ref in enumerate(elements.unpack_refs(packed))
            ]
            changed.append((rank, elements.pack_refs(refs)))
        yield key, changed


@dataclasses.dataclass
class InferFeatures(step.Step):
    """Adds the features that RunInference computes to the references of placed shards."""

    plan: beam.PCollection[elements.DatasetPlan]  # one element
    settings: dataset_settings.DatasetSettings

    def expand(self, shards: beam.PCollection[write_shards.PlacedShard]) -> beam.PCollection[write_shards.PlacedShard]:
        functions = self.settings.functions.inferred
        if not functions:
            return shards
        show = beam.FlatMap(_show, plan=beam.pvalue.AsSingleton(self.plan), settings=self.settings)
        images = shards | "Show" >> show.with_output_types(Shown)  # ((shard, rank), (pixels, Reference))
        from imagebeam.transforms.columns import function_handler  # late: Beam's module takes a tenth of a second

        computed = []
        for function in functions:
            key = function.feature.key
            infer = function_handler.infer(function, self.settings.functions.max_seconds)
            result = images | f"Infer {key}" >> infer  # ((shard, rank), PredictionResult)
            name = beam.Map(_with_name, name=function.feature.source)
            computed.append(result | f"Name {key}" >> name.with_output_types(tuple[write_shards.ShardKey, Any]))
        merged = computed | "Merge" >> beam.Flatten()  # (shard, (rank, feature, value))
        grouped = {"shards": shards, "computed": merged} | "Group" >> beam.CoGroupByKey()
        names = [function.feature.source for function in functions]
        return grouped | "Add" >> beam.FlatMap(_add, names=names).with_output_types(write_shards.PlacedShard)
