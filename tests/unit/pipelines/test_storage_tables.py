"""Options of storages in a config and on the command line: where they hold, what travels, what is refused."""

from __future__ import annotations

import functools
import json
import pathlib
from typing import Any

import apache_beam as beam
import pytest
from apache_beam import pipeline as pipeline_lib
from apache_beam.options.pipeline_options import PipelineOptions

from imagebeam import storage
from imagebeam.beam import pipeline_job
from imagebeam.pipelines import dataset_facts, launch, request, storage_tables
from imagebeam.pipelines.config import model
from imagebeam.storage import given_options
from tests import case_tables, command_line, error_texts, job_graphs

SOURCE, OUTPUT = {"profile": "reader"}, {"profile": "writer"}


def test_address_has_the_options_of_the_input_or_the_output_that_it_is_nearer_to() -> None:
    for source, output, expected in [
        (
            "s3://a/in",
            "s3://b/out",
            {"s3://a/in/x": SOURCE, "s3://a": SOURCE, "s3://b/out/x": OUTPUT, "s3://b/y": OUTPUT, "s3://c": SOURCE},
        ),
        ("s3://a/in", "s3://a/out", {"s3://a/in/x": SOURCE, "s3://a/out/x": OUTPUT, "s3://a/labels": SOURCE}),
        ("s3://a", "s3://a/out", {"s3://a/x": SOURCE, "s3://a/out": OUTPUT}),
        ("s3://a/out/in", "s3://a/out", {"s3://a/out/in/x": SOURCE, "s3://a/out/x": OUTPUT}),
        ("s3://a/*/x[0-9].jpg", "s3://a/out", {"s3://a/b/x1.jpg": SOURCE, "s3://a/out": OUTPUT}),
        ("gs://a/in", "s3://b/out", {"gs://c": SOURCE, "s3://c": OUTPUT, "hdfs://c": {}}),
        ("/data/table.csv", "s3://b/out", {"gs://c": SOURCE, "s3://b/x": OUTPUT, "https://c": {}, "/data": {}}),
        (None, "s3://b/out", {"s3://b/x": OUTPUT}),
    ]:
        with storage.using(storage_tables.table_of(source, SOURCE if source else {}, output, OUTPUT)):
            assert {uri: given_options.options_of(uri) for uri in expected} == expected, (source, output)


def test_places_of_beam_have_no_options() -> None:
    config = request.as_config({"source": {"uri": "gs://a/in", "storage_options": {"token": "anon"}}})
    with storage_tables.of_config(config, ["--temp_location=gs://mine/temp"]):
        assert given_options.options_of("gs://mine/temp/x") == {}
        assert given_options.options_of("gs://other") == {"token": "anon"}


def test_options_change_neither_the_dataset_nor_what_is_recorded() -> None:
    plain = {"source": {"uri": "s3://a/in"}, "output": {"uri": "s3://b/out"}}
    given = {name: {**section, "storage_options": SOURCE} for name, section in plain.items()}
    one, other = map(request.as_config, (plain, given))
    assert one.identity() == other.identity()
    assert one.recorded() == other.recorded()
    assert "storage_options" not in one.recorded()["source"]
    digests = {
        dataset_facts.digest_command(request.Checked(each, 1), "s3://a/in", "s3://b/out", None) for each in (one, other)
    }
    assert len(digests) == 1


def test_secret_or_useless_options_in_a_config_are_refused() -> None:
    for section, uri, options in [
        ("source", "s3://a/in", {"secret": "not-to-be-seen"}),
        ("output", "s3://a/in", {"client_kwargs": {"aws_session_token": "not-to-be-seen"}}),
        ("output", "/data/out", {"profile": "p"}),
    ]:
        with case_tables.named(section), error_texts.raises("config-invalid") as caught:
            request.as_config({section: {"uri": uri, "storage_options": options}})
        assert "not-to-be-seen" not in str(caught.value)


def test_options_of_a_command_are_refused_if_they_are_secret_or_its_folder_is_local(tmp_path: pathlib.Path) -> None:
    for address, option, code in [
        ("s3://a", "secret=not-to-be-seen", "storage-secret-literal"),
        (str(tmp_path), "profile=p", "storage-options-local"),
        ("s3://a", "profile", "set-form"),
    ]:
        with case_tables.named(option), error_texts.raises(code), storage_tables.of_command(address, [option]):
            pass
    completed = command_line.end(2, "verify", "s3://a", "--storage-options", "secret=not-to-be-seen")
    assert "--storage-options.secret is a secret" in completed.stderr
    assert "not-to-be-seen" not in completed.stderr


def test_options_of_a_command_hold_below_its_address() -> None:
    with storage_tables.of_command("gs://a/b", ["token={env: MY_TOKEN}", "requester_pays=true"]):
        assert given_options.options_of("gs://a/c") == {"token": {"env": "MY_TOKEN"}, "requester_pays": True}


def test_every_step_carries_the_options_and_no_secret(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_VARIABLE", "not-to-be-seen")
    steps: list[Any] = []

    class Steps(pipeline_lib.PipelineVisitor):  # type: ignore[misc]
        def visit_transform(self, transform_node: Any) -> None:
            if isinstance(transform_node.transform, beam.ParDo):
                steps.append(transform_node)

    add_steps = functools.partial(job_graphs.add_conversion, folder=tmp_path, source={"uri": str(tmp_path)})
    graphs = []
    for table in ({}, {"gs://a": {"token": {"env": "A_VARIABLE"}}}):
        with storage.using(table):
            pipeline = launch.build(PipelineOptions([job_graphs.FN_API]), add_steps)
        graphs.append(pipeline.to_runner_api().SerializeToString())
    pipeline.visit(Steps())
    carried = [sum(b"A_VARIABLE" in pickled for pickled in job_graphs.pickles_in(graph)) for graph in graphs]
    assert carried == [0, len(steps)]
    assert len(steps) > 10
    for graph in graphs:
        assert not any(b"not-to-be-seen" in each for each in (graph, *job_graphs.pickles_in(graph)))


def test_what_takes_no_options_refuses_them(tmp_path: pathlib.Path) -> None:
    output = {"uri": "gs://b/out", "storage_options": {"project": "p"}}
    config = {"output": output, "source": {"uri": str(tmp_path)}}
    storage.storage_of("memory://b").write_whole("memory://b/x", b"")
    with error_texts.raises("pipeline-setting"):
        pipeline_job.make_job({"output": {**output, "uri": "memory://b/out"}, "label": {"by": "none"}})
    with error_texts.raises("config-invalid"):
        model.parse_config({**config, "output": {**output, "writer": "beam"}}, "the test")
    columns = {"a": {"type": "float", "transform": "z_score"}}
    transformed = model.parse_config({**config, "columns": columns, "source": {"by": "manifest"}}, "the test")
    with error_texts.raises("transform-output-unreachable"):
        launch.scratch_folder(transformed, ["--runner=FlinkRunner"])


def test_settings_of_a_config_come_from_the_command_line() -> None:
    settings = ["source.storage_options.endpoint_url=http://h:1", "source.storage_options.key={env: K}"]
    config = request.load_config(None, settings, "s3://a", None)
    assert json.dumps(config.source.storage_options) == '{"endpoint_url": "http://h:1", "key": {"env": "K"}}'
