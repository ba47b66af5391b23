"""The files of deploy/ by which schedulers run imagebeam: their commands, exit codes, settings and placeholders.

`make schedulers-test` tries them in Airflow, Kubeflow's compiler, Kubernetes' schemas and systemd.
"""

from __future__ import annotations

import ast
import collections
import json
import pathlib
import re
import shlex
from typing import Any

import pytest
import yaml
from google.cloud.dataflow_v1beta3.types import templates

import imagebeam
from imagebeam import errors
from tests import command_line, deployed, image_sets

GUIDE = (command_line.ROOT / "docs" / "schedulers.md").read_text()
FILES = sorted(
    path
    for path in deployed.DEPLOY.rglob("*")
    if path.is_file() and not {"flex_template", "__pycache__"} & {*path.parts}
)
STATE = "/var/lib/imagebeam"  # of the service
PLACEHOLDERS = {"YOUR-BUCKET", "YOUR-PROJECT", "YOUR-ADDRESS"}
USELESS_TO_RETRY = {
    error.exit_code for error in (errors.ConfigError, errors.TooManyRejectsError, errors.VerificationError)
}


def load_yaml(name: str) -> Any:
    return yaml.safe_load((deployed.DEPLOY / name).read_text())


def load_unit(name: str) -> dict[str, dict[str, list[str]]]:
    """Reads a unit of systemd by its rules: settings by section and name, each with all its values."""
    sections: dict[str, dict[str, list[str]]] = {}
    for line in (deployed.DEPLOY / "systemd" / name).read_text().splitlines():
        if not line.strip() or line.startswith(("#", ";")):
            continue
        if line.startswith("["):
            settings = sections.setdefault(line.strip("[]"), collections.defaultdict(list))
            continue
        key, equals, value = line.partition("=")
        assert equals and key == key.strip() and "\\" not in line, line
        settings[key].append(value)
    return sections


def constants(name: str) -> dict[str, Any]:
    """Returns the literals that a Python file of deploy/ names at its top level."""
    found = {}
    for node in ast.parse((deployed.DEPLOY / name).read_text()).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found[node.targets[0].id] = ast.literal_eval(node.value)
    return found


def of_kubernetes() -> list[list[str]]:
    (container,) = load_yaml("kubernetes/job.yaml")["spec"]["template"]["spec"]["containers"]
    return [container["args"]]


def of_systemd() -> list[list[str]]:
    """Returns the commands of the service for `flowers`."""
    lines = (deployed.DEPLOY / "systemd" / "flowers.env").read_text().splitlines()
    variables = dict(line.split("=", 1) for line in lines if not line.startswith("#"))
    commands = []
    for line in load_unit("imagebeam@.service")["Service"]["ExecStart"]:
        program, *arguments = shlex.split(line)
        assert program == "/opt/imagebeam/bin/imagebeam"
        arguments = [each.replace("%i", "flowers").replace("%S/imagebeam", STATE) for each in arguments]
        commands.append([re.sub(r"\$\{(\w+)\}", lambda found: variables[found[1]], each) for each in arguments])
    return commands


def of_cron() -> list[list[str]]:
    """Returns the command of the only line that has one, as cron takes it."""
    text = (deployed.DEPLOY / "cron" / "imagebeam").read_text()
    assert (
        text.endswith("\n") and "%" not in text
    )  # cron ignores the last line without its end, and ends a command at %
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert re.fullmatch(r"[A-Z]+=\S+", lines[0]) and len(lines) == 2
    *times, user, command = lines[1].split(maxsplit=6)
    assert all(re.fullmatch(r"[\d,*/-]+", each) for each in times) and user == "imagebeam"
    program, *arguments = shlex.split(command)
    assert program == "/opt/imagebeam/bin/imagebeam"
    return [arguments]


def of_airflow() -> list[list[str]]:
    nightly, dataflow = (constants(f"airflow/imagebeam_{name}.py") for name in ("nightly", "dataflow"))
    assert all(dataflow[name] == nightly[name] for name in ("INPUT", "OUTPUT", "OPTIONS"))
    return [["convert", "--input", nightly["INPUT"], "--output", nightly["OUTPUT"], *nightly["OPTIONS"]]]


COMMANDS = {"airflow": of_airflow, "cron": of_cron, "kubernetes": of_kubernetes, "systemd": of_systemd}


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("schedulers")
    image_sets.write_folder(folder / "photos", per_label=2)
    return folder


@pytest.mark.parametrize("scheduler", COMMANDS)
def test_commands_of_a_scheduler_convert(scheduler: str, images: pathlib.Path, tmp_path: pathlib.Path) -> None:
    for arguments in COMMANDS[scheduler]():
        options = {each.partition("=")[0] for each in arguments if each.startswith("--")}
        assert options <= deployed.options_of(arguments[0])
        filled = [each.replace("gs://YOUR-BUCKET/photos", f"{images}/photos") for each in arguments]
        filled = [each.replace("gs://YOUR-BUCKET", str(tmp_path)).replace(STATE, str(tmp_path)) for each in filled]
        command_line.succeed(*filled)
    assert {*tmp_path.rglob("catalog.json")}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(deployed.DEPLOY)))
def test_file_has_the_placeholders_of_the_guide_and_images_of_the_version(path: pathlib.Path) -> None:
    text = path.read_text()
    found = set(deployed.PLACEHOLDER.findall(text))
    assert found <= PLACEHOLDERS
    assert not re.search(r"my-(project|bucket)|example\.com|TODO|<[A-Z_]+>", text)
    assert all(f"`{each}`" in GUIDE for each in PLACEHOLDERS)
    assert f"deploy/{path.relative_to(deployed.DEPLOY)}" in GUIDE

    beam = re.findall(r"^apache-beam(?:\[.*\])?==(\S+)", (command_line.ROOT / "requirements.lock").read_text(), re.M)[0]
    version = imagebeam.__version__
    tags = {f"imagebeam:{version}", f"worker:{version}-py3.11-beam{beam}"}
    for shown in (text, GUIDE):
        assert set(re.findall(r"/imagebeam/((?:imagebeam|worker|launcher):[\w.-]*\w)", shown)) <= tags


def test_kubernetes_job_is_that_of_the_cron_job() -> None:
    assert (
        load_yaml("kubernetes/job.yaml")["spec"] == load_yaml("kubernetes/cronjob.yaml")["spec"]["jobTemplate"]["spec"]
    )


def test_kubernetes_retries_what_can_pass_and_nothing_else() -> None:
    cron = load_yaml("kubernetes/cronjob.yaml")["spec"]
    job = cron["jobTemplate"]["spec"]
    pod = job["template"]["spec"]
    (container,) = pod["containers"]
    assert (cron["concurrencyPolicy"], pod["restartPolicy"]) == ("Forbid", "Never")
    failing = [rule for rule in job["podFailurePolicy"]["rules"] if rule["action"] == "FailJob"]
    assert [set(rule["onExitCodes"]["values"]) for rule in failing] == [USELESS_TO_RETRY]
    assert failing[0]["onExitCodes"]["containerName"] == container["name"]
    waits = [min(10 * 2**retry, 360) for retry in range(job["backoffLimit"])]
    assert sum(waits) > 2 * 150  # the lease of a lock in a bucket


def test_kubernetes_pod_has_no_rights_that_it_does_not_need() -> None:
    pod = load_yaml("kubernetes/job.yaml")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert (
        pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault"
    )
    context = container["securityContext"]
    assert context["readOnlyRootFilesystem"] and not context["allowPrivilegeEscalation"]
    assert context["capabilities"] == {"drop": ["ALL"]}
    user = re.findall(r"^USER (\d+)$", (command_line.ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert user == [str(pod["securityContext"]["runAsUser"])]
    written = {each["name"]: each["value"] for each in container["env"]}
    (mount,) = container["volumeMounts"]
    assert written == {"HOME": mount["mountPath"], "TMPDIR": mount["mountPath"]}
    assert [each["name"] for each in pod["volumes"] if "emptyDir" in each] == [mount["name"]]
    account = load_yaml("kubernetes/service_account.yaml")
    assert account["metadata"]["name"] == pod["serviceAccountName"]
    assert "iam.gke.io/gcp-service-account" in account["metadata"]["annotations"]


def test_systemd_retries_what_can_pass_and_nothing_else() -> None:
    service = load_unit("imagebeam@.service")["Service"]
    assert (service["Type"], service["Restart"]) == (["oneshot"], ["on-failure"])
    assert {*map(int, service["RestartPreventExitStatus"][0].split())} == USELESS_TO_RETRY
    assert service["RestartSec"] == ["5min"]  # longer than the lease of a lock in a bucket


def test_airflow_retries_what_can_pass_and_nothing_else() -> None:
    found = constants("airflow/imagebeam_airflow.py")
    assert found["NOT_RETRIED"].keys() == USELESS_TO_RETRY
    assert errors.BusyError.exit_code in found["RETRIED"]


def test_body_of_cloud_scheduler_is_a_launch_of_the_template() -> None:
    text = (deployed.DEPLOY / "cloud_scheduler" / "body.json").read_text()
    templates.LaunchFlexTemplateRequest.from_json(text)  # refuses unknown fields and wrong types
    given = json.loads(text)["launchParameter"]["parameters"]
    metadata = json.loads((deployed.DEPLOY / "flex_template" / "metadata.json").read_text())["parameters"]
    parameters = {each["name"]: each for each in metadata}
    assert given.keys() <= parameters.keys()
    assert {name for name, each in parameters.items() if not each["isOptional"]} <= given.keys()
    for name, value in given.items():
        assert re.search(parameters[name]["regexes"][0], value), name
