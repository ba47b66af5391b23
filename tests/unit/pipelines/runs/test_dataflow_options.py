"""The options of a Dataflow job: what is refused, and what is added. Tables over pure functions."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from apache_beam.options import pipeline_options_validator

from imagebeam import storage, version
from imagebeam.pipelines import launch
from imagebeam.pipelines.beam import runners
from imagebeam.pipelines.config import model as config_lib
from imagebeam.pipelines.messages import run_journal
from imagebeam.pipelines.runs import dataflow_options, remote_job
from imagebeam.transforms import dataset_settings
from tests import case_tables, error_texts
from tests.command_line import ROOT

HERE = dataflow_options.Versions("3.11", "2.77.0", "0.1.0")
IMAGE = "europe-docker.pkg.dev/p/r/worker:latest"
GIVEN = {"project": "p", "region": "europe-west4", "temp_location": "gs://b/tmp", "sdk_container_image": IMAGE}
BEAMS_OWN = "apache/beam_python3.11_sdk:2.77.0"


def make_config(
    source: str = "gs://b/images", output: str | None = "gs://b/cats", by: str = "files", **sections: Any
) -> Any:
    fields = {"source": {"uri": source, "by": by}, "output": {"uri": output}, **sections}
    return config_lib.parse_config(fields, where="the test")


def transformed() -> Any:
    age = {"type": "float", "transform": "z_score"}
    return make_config("gs://b/m.csv", by="manifest", label={"by": "none"}, columns={"age": age})


@pytest.fixture(autouse=True)
def _no_default_region(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CLOUDSDK_COMPUTE_REGION", raising=False)


# --- what is refused -------------------------------------------------------------------------------------------------


@case_tables.each_case(
    "change, code",
    {
        "project": ({"project": None}, "dataflow-options-missing"),
        "region": ({"region": None}, "dataflow-options-missing"),
        "temp-location": ({"temp_location": None}, "dataflow-options-missing"),
        "temp-local": ({"temp_location": "/tmp/x"}, "dataflow-no-bucket"),
        "temp-without-bucket": ({"temp_location": "gs:///x"}, "dataflow-no-bucket"),
        "staging-elsewhere": ({"staging_location": "s3://b"}, "dataflow-no-bucket"),
        "template-local": ({"template_location": "t.json"}, "dataflow-no-bucket"),
        "job-name": ({"job_name": "Cats_1"}, "dataflow-job-name"),
        "job-name-ends-with-hyphen": ({"job_name": "cats-"}, "dataflow-job-name"),
        "no-image": ({"sdk_container_image": None}, "dataflow-options-missing"),
        "beams-image": ({"sdk_container_image": BEAMS_OWN}, "dataflow-image-of-beam"),
        "beams-image-at-google": (
            {"sdk_container_image": f"gcr.io/cloud-dataflow/v1beta3/{BEAMS_OWN.partition('/')[2]}"},
            "dataflow-image-of-beam",
        ),
        "no-setup-file": ({"setup_file": "/nowhere/setup.py"}, "dataflow-setup-file"),
        "setup-file-of-another-name": ({"setup_file": __file__}, "dataflow-setup-file"),
        "python": ({"sdk_container_image": "r/imagebeam:0.1.0-py3.12"}, "dataflow-image-version"),
        "python-of-base": ({"sdk_container_image": "r/beam_python3.10_sdk_mine:1"}, "dataflow-image-version"),
        "python-without-dot": ({"sdk_container_image": "r/w:py310"}, "dataflow-image-version"),
        "beam": ({"sdk_container_image": "r/w:py3.11-beam2.76.0"}, "dataflow-image-version"),
        "imagebeam": ({"sdk_container_image": "r/imagebeam-worker:0.2.0"}, "dataflow-image-version"),
        "alias": (
            {"worker_harness_container_image": "r/w:py312", "sdk_container_image": None},
            "dataflow-image-version",
        ),
    },
)
def test_wrong_option_is_refused_with_its_remedy(change: dict[str, Any], code: str) -> None:
    with error_texts.raises(code):
        dataflow_options.require_options({**GIVEN, **change}, make_config(), HERE)


def test_all_missing_options_are_told_at_once() -> None:
    with error_texts.raises("dataflow-options-missing") as raised:
        dataflow_options.require_options({"job_name": "Cats_1"}, make_config("/data/images"), HERE)
    begins = (
        "--project is missing: ",
        "--region is missing: ",
        "--temp_location is missing: ",
        "the workers would not",
    )
    texts = str(raised.value).split("; ")
    assert len(texts) == len(begins) and all(text.startswith(begin) for text, begin in zip(texts, begins))
    assert "--sdk_container_image=IMAGE" in texts[-1]


@case_tables.each_case(
    "change",
    {
        "image": {},
        "image-that-tells-all": {"sdk_container_image": "r/imagebeam:0.1.0-py3.11-beam2.77.0"},
        "image-that-tells-nothing": {"sdk_container_image": "localhost:5000/python-images/w:1.2.3"},
        "setup-file": {"sdk_container_image": None, "setup_file": str(ROOT / "setup.py")},
        "beams-image-and-setup-file": {"sdk_container_image": BEAMS_OWN, "setup_file": str(ROOT / "setup.py")},
        "extra-package": {"sdk_container_image": None, "extra_packages": ["imagebeam.tar.gz"]},
        "requirements": {"sdk_container_image": None, "requirements_file": "r.txt"},
        "names": {"job_name": "cats-1", "staging_location": "gs://b"},
    },
)
def test_right_options_are_taken(change: dict[str, Any]) -> None:
    dataflow_options.require_options({**GIVEN, **change}, make_config(), HERE)


def test_region_of_the_environment_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUDSDK_COMPUTE_REGION", "asia-east1")
    values = {**GIVEN, "region": None}
    dataflow_options.require_options(values, make_config(), HERE)
    assert "--region=asia-east1" in dataflow_options.default_arguments(values, make_config())
    assert not any("region" in text for text in dataflow_options.default_arguments(GIVEN, make_config()))


@case_tables.each_case(
    "source, output",
    [
        ("/data/images", "gs://b/out"),
        ("images", "gs://b/out"),
        ("gs://b/in", "/data/out"),
        ("gs://b/in", "file:///data/out"),
    ],
)
def test_folder_of_the_launcher_is_refused(source: str, output: str) -> None:
    with error_texts.raises("dataflow-local-address"):
        dataflow_options.require_options(GIVEN, make_config(source, output), HERE)


@case_tables.each_case("output", [None, "hdfs://namenode:9870/out", "gs://b/out", "s3://b/out"])
def test_output_that_workers_reach_is_taken(output: str | None) -> None:
    dataflow_options.require_options(GIVEN, make_config(output=output), HERE)


@case_tables.each_case(
    "change, is_taken",
    {
        "image": ({}, True),
        "setup-file": ({"sdk_container_image": None, "setup_file": str(ROOT / "setup.py")}, False),
        "beams-image-and-setup-file": ({"sdk_container_image": BEAMS_OWN, "setup_file": str(ROOT / "setup.py")}, False),
    },
)
def test_transformed_columns_need_an_image_of_their_own(change: dict[str, Any], is_taken: bool) -> None:
    values = {**GIVEN, **change}
    if is_taken:
        dataflow_options.require_options(values, transformed(), HERE)
        return
    with error_texts.raises("dataflow-image-without-transform"):
        dataflow_options.require_options(values, transformed(), HERE)


def test_versions_of_the_launcher_are_those_of_this_process() -> None:
    found = dataflow_options.launcher_versions()
    assert found.imagebeam == version.__version__
    assert re.fullmatch(r"3\.\d+", found.python) and re.fullmatch(r"\d+\.\d+\.\d+.*", found.beam)


# --- buckets ---------------------------------------------------------------------------------------------------------


class Bucket:
    """A storage that answers as it is told, and notes what it was asked."""

    def __init__(self, **failing: Exception | None):
        self._failing = failing
        self.asked: list[tuple[str, str]] = []

    def __getattr__(self, name: str) -> Callable[..., bool]:
        def answer(uri: str, *_: object) -> bool:
            self.asked.append((name, uri))
            if (error := self._failing.get(name)) is not None:
                raise error
            return True

        return answer


@pytest.fixture
def buckets(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Bucket]]:
    found: dict[str, Bucket] = {}
    monkeypatch.setattr(storage, "storage_of", lambda uri: found[storage.root_of(uri)])
    yield found


DENIED = PermissionError(13, "gs://b: access denied")


@pytest.mark.parametrize(
    ("method", "error"),
    [
        pytest.param("stat", FileNotFoundError(2, "there is no bucket 'b'"), id="absent"),
        pytest.param("stat", DENIED, id="unreadable"),
        pytest.param("create_new", DENIED, id="unwritable"),
        pytest.param("stat", OSError(5, "no answer"), id="silent"),
        pytest.param("stat", storage.UnavailableError(5, "no route"), id="no-network"),
        pytest.param("stat", OSError(22, "bad name"), id="bad-name"),
    ],
)
def test_bucket_that_cannot_be_used_is_refused(buckets: dict[str, Bucket], method: str, error: OSError) -> None:
    buckets["gs://b"] = Bucket(**{method: error})
    with error_texts.raises("bucket-unusable"):
        dataflow_options.require_buckets(GIVEN)


@pytest.mark.parametrize("remove", [None, DENIED])
def test_bucket_is_asked_with_three_requests_and_once(buckets: dict[str, Bucket], remove: Exception | None) -> None:
    buckets["gs://b"] = Bucket(remove=remove)
    dataflow_options.require_buckets({**GIVEN, "staging_location": "gs://b/staging"})
    (_, root), (_, created), (_, removed) = buckets["gs://b"].asked
    assert (root, created) == ("gs://b", removed)
    assert re.fullmatch(r"gs://b/tmp/imagebeam-[0-9a-f]{8}\.trial", created)


@pytest.mark.parametrize("option", ["staging_location", "template_location"])
def test_bucket_of_another_option_is_asked_too(buckets: dict[str, Bucket], option: str) -> None:
    buckets.update({"gs://b": Bucket(), "gs://c": Bucket(stat=FileNotFoundError(2, "there is no bucket 'c'"))})
    with error_texts.raises("bucket-unusable"):
        dataflow_options.require_buckets({**GIVEN, option: "gs://c/s"})


def test_folder_of_a_template_is_written_to(buckets: dict[str, Bucket]) -> None:
    buckets.update({"gs://b": Bucket(), "gs://c": Bucket()})
    dataflow_options.require_buckets({**GIVEN, "template_location": "gs://c/t/convert.json"})
    _, (_, created), _ = buckets["gs://c"].asked
    assert created.startswith("gs://c/t/imagebeam-")


# --- what is added ---------------------------------------------------------------------------------------------------


@case_tables.each_case(
    "dataset, output, purpose, begin",
    {
        "plain": ("cats", "gs://b/cats", "", "imagebeam-cats-"),
        "odd-letters": ("Cats_and Dogs", "gs://b/x", "", "imagebeam-cats-and-dogs-"),
        "no-letter-of-ascii": ("катки", "gs://b/x", "", "imagebeam-"),
        "long": ("x" * 80, "gs://b/x", "plan", "imagebeam-plan-xxx"),
        "long-with-hyphens": ("x-" * 40, "gs://b/x", "", "imagebeam-x-x"),
        "undecodable": ("cats", "gs://b/c\udc80", "", "imagebeam-cats-"),
    },
)
def test_job_name_is_one_that_beam_and_dataflow_take(dataset: str, output: str, purpose: str, begin: str) -> None:
    name = dataflow_options.job_name(dataset, output, purpose)
    assert name.startswith(begin) and len(name) <= 63
    validator = pipeline_options_validator.PipelineOptionsValidator
    assert validator.is_full_string_match(None, validator.JOB_PATTERN, name)


def test_job_name_is_the_same_for_an_output_and_another_for_another() -> None:
    names = [dataflow_options.job_name("cats", uri) for uri in ("gs://a/cats", "gs://a/cats", "gs://b/cats")]
    assert names[0] == names[1] != names[2]


@case_tables.each_case(
    "sections, machine_type, threads",
    {
        "bytes": ({}, "e2-standard-2", 4),
        "encodes": ({"image": {"encode": "jpeg"}}, "e2-standard-4", 2),
        "decodes": ({"image": {"check": "decode"}}, "e2-standard-4", 2),
        "sums-pixels": ({"statistics": {"pixels": True}}, "e2-standard-4", 2),
    },
)
def test_workers_fit_the_work(sections: dict[str, Any], machine_type: str, threads: int) -> None:
    added = dataflow_options.default_arguments(GIVEN, make_config(**sections))
    assert added[-2:] == [f"--machine_type={machine_type}", f"--number_of_worker_harness_threads={threads}"]


def test_workers_that_run_tf_transform_get_memory() -> None:
    added = dataflow_options.default_arguments(GIVEN, transformed())
    assert added[-2:] == ["--machine_type=e2-highmem-4", "--number_of_worker_harness_threads=2"]


def test_defaults_name_and_label_the_job() -> None:
    added = dataflow_options.default_arguments(GIVEN, make_config(output="gs://b/Cats/"))
    assert added[:3] == [
        f"--job_name={dataflow_options.job_name('Cats', 'gs://b/Cats')}",
        f"--labels=imagebeam-version={version.__version__.replace('.', '-')}",
        "--labels=imagebeam-dataset=cats",
    ]
    assert dataflow_options.default_arguments(GIVEN, make_config(output=None), "plan")[0].startswith(
        "--job_name=imagebeam-plan-new-"
    )


def test_given_options_stay_and_only_given_ones() -> None:
    given = {
        "job_name": "mine",
        "machine_type": "n2-standard-8",
        "number_of_worker_harness_threads": 1,
        "labels": ["imagebeam-dataset=x", "team=vision"],
    }
    added = dataflow_options.default_arguments({**GIVEN, **given}, make_config())
    assert [text.rpartition("=")[0] for text in added] == ["--labels=imagebeam-version", "--experiments"]


@case_tables.each_case("text, value", [("0.1.0+x", "0-1-0-x"), ("A_b", "a_b"), ("x" * 70, "x" * 63)])
def test_label_value_is_one_that_google_cloud_takes(text: str, value: str) -> None:
    assert dataflow_options.label_value(text) == value


@case_tables.each_case(
    "more, endpoint", {"public": ([], ""), "stub": (["--dataflow_endpoint=http://localhost:1"], "http://localhost:1")}
)
def test_job_is_that_of_the_options(more: list[str], endpoint: str) -> None:
    named = ["--runner=DataflowRunner", "--project=p", "--region=r", "--job_name=cats"]
    job = dataflow_options.job_of(runners.make_options([*named, *more], 1))
    assert job == remote_job.RemoteJob("DataflowRunner", "p", "r", "cats", endpoint=endpoint)


def test_plan_writes_no_template(tmp_path: pathlib.Path) -> None:
    arguments = ["--runner=DataflowRunner", "--project=p", "--region=r", "--template_location=gs://b/t"]
    settings = dataset_settings.DatasetSettings(str(tmp_path), "{}", ())
    with error_texts.raises("plan-template"):
        options = runners.make_options(arguments, 1)
        launch.plan_on_dataflow(settings, options, lambda _: None, run_journal.Journal(), False)
