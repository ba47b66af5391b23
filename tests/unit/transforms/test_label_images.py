from __future__ import annotations

from apache_beam.runners.portability import fn_api_runner
from apache_beam.testing import test_pipeline
from apache_beam.testing.util import assert_that, equal_to

from imagebeam.transforms import label_images
from imagebeam.transforms.elements import ImageRef, Reason, Reject
from imagebeam.transforms.sources.label_rule import LABELLED, LabelRule
from tests.unit.transforms.small_batches import create


def ref(key: str, **fields: object) -> ImageRef:
    return ImageRef(key, f"/data/{key}", **fields)


def test_label_images_yields_labelled_images_and_rejects() -> None:
    with test_pipeline.TestPipeline(runner=fn_api_runner.FnApiRunner()) as pipeline:
        refs = pipeline | create([ref("cat/1.jpg"), ref("2.jpg"), ref("caf\udce9/3.jpg")], [ref("2.jpg")])
        labelled = refs | label_images.LabelImages(LabelRule("directory"))
        expected = [[ref("cat/1.jpg", label="cat"), ref("caf\udce9/3.jpg", label="caf\udce9")]]
        reject = Reject("2.jpg", "/data/2.jpg", "label", Reason.NO_LABEL, "'2.jpg' is not of the form label/image")
        assert_that(labelled.images, equal_to(expected), label="Images")
        assert_that(labelled.rejects, equal_to([reject] * 2), label="Rejects")


def test_label_images_passes_references_on_that_have_theirs() -> None:
    batch = [ref("1.jpg", label="cat"), ref("2.jpg", label=None)]
    with test_pipeline.TestPipeline(runner=fn_api_runner.FnApiRunner()) as pipeline:
        labelled = pipeline | create(batch) | label_images.LabelImages(LABELLED)
        assert_that(labelled.images, equal_to([batch]), label="Images")
        assert_that(labelled.rejects, equal_to([]), label="Rejects")
