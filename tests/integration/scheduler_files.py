"""The files of deploy/ in the tools that read them: Kubeflow's compiler, Kubernetes' schemas, systemd.

Like scheduler_airflow.py a part of `make schedulers-test`, because the tools have environments of their own.
"""

from __future__ import annotations

import pathlib
import re
import shutil
import zipfile
from typing import Any

import jsonschema
import pytest
import yaml

from imagebeam.pipelines.beam import runners
from tests import command_line, datasets, deployed, image_sets
from tests.servers import java_programs, locked

pytestmark = pytest.mark.integration


# --- Kubernetes ------------------------------------------------------------------------------------------------------


def validate(path: pathlib.Path) -> command_line.Completed:
    return command_line.run_other(locked.bin_of("kubernetes") / "kubernetes-validate", "-k", "1.37", "--strict", path)


@pytest.mark.parametrize("path", sorted((deployed.DEPLOY / "kubernetes").glob("*.yaml")), ids=lambda path: path.name)
def test_file_of_kubernetes_has_its_schema(path: pathlib.Path) -> None:
    done = validate(path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def operator_schema() -> dict[str, Any]:
    """The schema of the resources of Flink's operator, which knows no other keys than those that it lists."""
    folder = java_programs.prepare(pathlib.Path(java_programs.__file__).parent / "flink_operator")
    (jar,) = folder.glob("*.jar")
    with zipfile.ZipFile(jar) as archive:
        definition = yaml.load(
            archive.read("META-INF/fabric8/flinkdeployments.flink.apache.org-v1.yml"), yaml.CSafeLoader
        )
    (version,) = definition["spec"]["versions"]
    return closed(version["schema"]["openAPIV3Schema"])


def closed(schema: dict[str, Any]) -> dict[str, Any]:
    """Returns a schema of Kubernetes as one of JSON that refuses the keys that Kubernetes would drop."""
    strict = {name: closed(value) if isinstance(value, dict) else value for name, value in schema.items()}
    if "properties" in schema and not schema.get("x-kubernetes-preserve-unknown-fields"):
        strict["additionalProperties"] = False
    if schema.get("x-kubernetes-int-or-string"):
        strict["type"] = ["integer", "string"]
    return strict


def flink_deployment() -> dict[str, Any]:
    (found, *_) = yaml.safe_load_all((deployed.DEPLOY / "kubernetes" / "flink.yaml").read_text())
    return {"spec": found["spec"]}


def test_flink_deployment_has_the_schema_of_the_operator(operator_schema: dict[str, Any]) -> None:
    jsonschema.validate(flink_deployment(), operator_schema)


@pytest.mark.parametrize("part", ["jobManager", "podTemplate"])
def test_misspelt_key_of_the_flink_deployment_is_found(operator_schema: dict[str, Any], part: str) -> None:
    wrong = flink_deployment()
    wrong["spec"][part]["replica"] = 1
    with pytest.raises(jsonschema.ValidationError, match="replica"):
        jsonschema.validate(wrong, operator_schema)


@pytest.mark.parametrize("name", ["flink", "spark"])
@pytest.mark.parametrize("job", ["job", "cronjob"])
def test_jobs_with_the_arguments_of_a_cluster_name_its_services(tmp_path: pathlib.Path, name: str, job: str) -> None:
    text = (deployed.DEPLOY / "kubernetes" / f"{name}.yaml").read_text()
    added = re.findall(r"^#   - (--\S+)", text, re.MULTILINE)
    services = {each["metadata"]["name"] for each in yaml.safe_load_all(text) if each["kind"] == "Service"}
    services |= {
        f"{each['metadata']['name']}-rest" for each in yaml.safe_load_all(text) if "flink" in each["apiVersion"]
    }
    options = dict(each.removeprefix("--").split("=", 1) for each in added)
    assert {options[key].partition(":")[0] for key in ("job_endpoint", "flink_master") if key in options} <= services
    runners.make_options([each for each in added if "endpoint" not in each], workers=1)
    document = yaml.safe_load((deployed.DEPLOY / "kubernetes" / f"{job}.yaml").read_text())
    spec = document["spec"]["jobTemplate"]["spec"] if job == "cronjob" else document["spec"]
    spec["template"]["spec"]["containers"][0]["args"] += added
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(document))
    assert validate(tmp_path / "job.yaml").returncode == 0


def test_misspelt_key_of_kubernetes_is_found(tmp_path: pathlib.Path) -> None:
    text = (deployed.DEPLOY / "kubernetes" / "cronjob.yaml").read_text()
    (tmp_path / "wrong.yaml").write_text(text.replace("podFailurePolicy:", "podFailurePolicies:"))
    assert validate(tmp_path / "wrong.yaml").returncode != 0


# --- Kubeflow --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("kubeflow")
    done = command_line.run_other(
        locked.bin_of("kubeflow") / "python", deployed.DEPLOY / "vertex" / "pipeline.py", cwd=folder
    )
    assert done.returncode == 0, done.stderr
    return folder


def load(compiled: pathlib.Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((compiled / f"{name}.yaml").read_text())
    return found


@pytest.mark.parametrize("name", ["imagebeam", "imagebeam_on_dataflow"])
def test_pipeline_converts_each_time_and_then_verifies(compiled: pathlib.Path, name: str) -> None:
    tasks = load(compiled, name)["root"]["dag"]["tasks"]
    (convert,) = tasks.keys() - {"verify", "importer"}
    assert (tasks["verify"]["dependentTasks"], tasks["importer"]["dependentTasks"]) == ([convert], ["verify"])
    for task in (convert, "verify"):
        assert not tasks[task]["cachingOptions"].get("enableCache")  # the second night would do nothing
        assert tasks[task]["retryPolicy"]["backoffDuration"] == "300s"


@pytest.mark.parametrize("name", ["imagebeam", "imagebeam_on_dataflow"])
def test_containers_of_a_pipeline_have_options_that_there_are(compiled: pathlib.Path, name: str) -> None:
    of_dataflow = {"--runner", "--project", "--region", "--temp_location", "--sdk_container_image"}
    for executor in load(compiled, name)["deploymentSpec"]["executors"].values():
        if "container" in executor:
            program, command = executor["container"]["command"]
            options = {each.partition("=")[0] for each in executor["container"]["args"] if each.startswith("--")}
            added = of_dataflow if name == "imagebeam_on_dataflow" else set()
            assert program == "imagebeam"
            assert options - added <= deployed.options_of(command)


def test_containers_of_the_pipeline_convert(compiled: pathlib.Path, tmp_path: pathlib.Path) -> None:
    image_sets.write_folder(tmp_path / "in", per_label=2)
    datasets.make(tmp_path / "in", tmp_path / "expected")
    values = {"input_uri": f"{tmp_path}/in", "output_uri": f"{tmp_path}/out", "config": "image_folder"}
    executors = load(compiled, "imagebeam")["deploymentSpec"]["executors"]
    for name in ("exec-convert", "exec-verify"):
        container = executors[name]["container"]
        arguments = [*container["command"][1:], *container["args"]]
        filled = [
            re.sub(r"\{\{\$\.inputs\.parameters\['(\w+)'\]\}\}", lambda v: values[v[1]], each) for each in arguments
        ]
        filled = [each.replace("{{$.outputs.parameters['summary'].output_file}}", f"{tmp_path}/s") for each in filled]
        assert "{{" not in "".join(filled)
        command_line.succeed(*filled)
    digests = {path.name: path.read_bytes() for path in tmp_path.glob("out/**/*-of-*.tfrecord")}
    assert digests == {path.name: path.read_bytes() for path in tmp_path.glob("expected/*-of-*.tfrecord")} != {}


# --- systemd ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def units(tmp_path: pathlib.Path) -> pathlib.Path:
    """The units for `flowers`, with a program that is there."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze not found: apt-get install systemd")
    for path in (deployed.DEPLOY / "systemd").glob("imagebeam@.*"):
        text = path.read_text().replace("/opt/imagebeam/bin/imagebeam", shutil.which("true") or "")
        (tmp_path / path.name).write_text(text)
    return tmp_path


def test_units_of_systemd_are_valid(units: pathlib.Path) -> None:
    shutil.copy(units / "imagebeam@.service", units / "imagebeam@flowers.service")
    shutil.copy(units / "imagebeam@.timer", units / "imagebeam@flowers.timer")
    for unit in ("imagebeam@flowers.service", "imagebeam@flowers.timer"):
        done = command_line.run_other("systemd-analyze", "verify", "--man=no", units / unit)
        assert (done.returncode, [line for line in done.stderr.splitlines() if "imagebeam" in line]) == (0, [])


def test_misspelt_setting_of_systemd_is_found(units: pathlib.Path) -> None:
    text = (units / "imagebeam@.service").read_text().replace("RestartSec=", "RestartSeconds=")
    (units / "imagebeam@flowers.service").write_text(text)
    done = command_line.run_other("systemd-analyze", "verify", "--man=no", units / "imagebeam@flowers.service")
    assert "RestartSeconds" in done.stderr


def test_time_of_the_timer_is_each_night() -> None:
    timer = (deployed.DEPLOY / "systemd" / "imagebeam@.timer").read_text()
    (calendar,) = re.findall(r"^OnCalendar=(.*)$", timer, re.MULTILINE)
    done = command_line.run_other(
        "systemd-analyze", "calendar", "--iterations=2", "--base-time=2026-11-21 00:00:00 UTC", calendar
    )
    assert done.returncode == 0, done.stderr
    assert [day in done.stdout for day in ("2026-11-21 02:30", "2026-11-22 02:30")] == [True, True]
