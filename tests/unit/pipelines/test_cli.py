from __future__ import annotations

import errno
import json
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys

import apache_beam  # noqa: F401  # before main() can import it without its clients, which other tests need
import pytest

import imagebeam
from imagebeam import errors, storage
from imagebeam.pipelines import cli, convert
from imagebeam.pipelines.config import schema
from imagebeam.pipelines.messages import terminal
from tests import case_tables, command_line, image_sets, patience
from tests.command_line import end

KEPT = "finished shards are kept, run the same command again to go on"


@pytest.fixture(scope="module")
def dataset(images: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Ten images in two shards; read only."""
    output = tmp_path_factory.mktemp("dataset") / "pets"
    convert.convert({"source": {"uri": str(images)}, "output": {"uri": str(output), "num_shards": 2}}, workers=1)
    return output


def snapshot(folder: pathlib.Path) -> dict[str, int]:
    """Every path below the folder with the time of its last change."""
    return {str(path): path.stat().st_mtime_ns for path in [folder, *sorted(folder.rglob("*"))]}


# --- exit codes ------------------------------------------------------------------------------------------------------


def test_convert_exits_0_and_again_0_with_nothing_to_do(images: pathlib.Path, tmp_path: pathlib.Path) -> None:
    command = ("convert", "--input", images, "--output", tmp_path / "out", "--workers", 1)
    assert re.search(r"^listed +10 images \(skipped: nothing\)\n +train +10 images, 1 shard, ", end(0, *command).stdout)
    assert end(0, *command).stdout.endswith("holds this dataset already: same config, same images; nothing to do\n")


def test_failed_pipeline_exits_1_with_its_cause(images: pathlib.Path, tmp_path: pathlib.Path) -> None:
    fingerprint = convert.plan({"source": {"uri": str(images)}}).fingerprint
    (tmp_path / "out" / ".imagebeam").mkdir(parents=True)
    (tmp_path / "out" / ".imagebeam" / f"staging-{fingerprint}").touch()  # where the shards should go
    done = end(1, "convert", "--input", images, "--output", tmp_path / "out", "--workers", 1)
    complaint = done.stderr.splitlines()[-1]
    assert re.search(r"^imagebeam: the pipeline failed: .*(File exists|Not a directory).*staging-", complaint)
    assert complaint.endswith("/StageInputs/Write']")  # no shard was finished: none is kept


def test_error_of_the_system_exits_1_without_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files", "shard")

    monkeypatch.setattr(cli, "_schema", fail)
    assert end(1, "schema").stderr == "imagebeam: [Errno 24] Too many open files: 'shard'\n"


@case_tables.each_case(
    "arguments, message",
    [
        (["--output", "{out}"], "--input (source.uri) is missing: give an address"),
        (["--input", "{in}"], "--output (output.uri) is missing: give an address"),
        (
            ["--input", "{in}/none", "--output", "{out}"],
            "--input '{in}/none' cannot be read (No such file or directory); check the address",
        ),
        (
            ["--input", "{in}/cat/0.jpg", "--output", "{out}"],
            "--input '{in}/cat/0.jpg' is not a folder; for a table of images set source.by=manifest",
        ),
        (["--input", "{in}", "--output", "xyz://b/out"], "address 'xyz://b/out': scheme 'xyz' is not known"),
        (["--input", "{in}", "--output", "{in}/cat/0.jpg"], "--output cannot be written: Not a directory"),
        (["--input", "{in}", "--output", "{out}", "--set", "output.num_shard=2"], "unknown key 'output.num_shard'"),
        (["--inptu", "{in}", "--output", "{out}"], "unknown option --inptu; did you mean --input?"),
        (
            ["--input", "{in}", "--output", "{out}", "--runner=Foo"],
            "Beam cannot start this runner: Unexpected pipeline runner: Foo.",
        ),
    ],
)
def test_convert_that_cannot_start_exits_2_and_writes_nothing(
    images: pathlib.Path, tmp_path: pathlib.Path, arguments: list[str], message: str
) -> None:
    def fill(text: str) -> str:
        return text.replace("{in}", str(images)).replace("{out}", str(tmp_path / "out"))

    complaint = end(2, "convert", "--workers", 1, *map(fill, arguments)).stderr.splitlines()[-1]
    assert complaint.startswith("imagebeam: ")
    assert fill(message) in complaint
    assert list(tmp_path.iterdir()) == []


@case_tables.each_case(
    "arguments, message",
    [
        (["verify", "x", "--deode"], "unknown argument '--deode'; did you mean --decode?"),
        (["inspect", "x", "--zzz"], "error: unknown argument '--zzz'\n"),
        (["convrt"], "invalid choice: 'convrt' (choose from "),
        ([], "the following arguments are required: COMMAND"),
        (["convert", "--workers", "0"], "--workers: '0' is not a positive number"),
        (["convert", "--workers", "x"], "--workers: 'x' is not a positive number"),
        (["inspect", "x", "-n", "-1"], "-n: '-1' is not a positive number"),
        (["bench", "x", "--dtype", "none"], "--dtype: invalid choice: 'none'"),
        (["bench", "x", "--seconds", "0"], "--seconds: '0' is not a positive number of seconds"),
        (["bench", "x", "--seconds", "inf"], "--seconds: 'inf' is not a positive number"),
        (["bench", "x", "--seconds", "5s"], "--seconds: '5s' is not a positive number"),
        (["bench", "x", "--batch-size", "0"], "--batch-size: '0' is not a positive number"),
    ],
)
def test_command_that_cannot_be_parsed_exits_2(arguments: list[str], message: str) -> None:
    assert message in end(2, *arguments).stderr


@case_tables.each_case("command", ["verify", "inspect", "report", "bench"])
def test_folder_without_dataset_exits_4_and_none_at_all_2(command: str, tmp_path: pathlib.Path) -> None:
    complaint = f"imagebeam: {tmp_path} holds no catalog.json: no dataset was committed there"
    assert complaint in end(4, command, tmp_path).stderr
    complaint = f"imagebeam: '{tmp_path}/none' does not exist; give the --output of a"
    assert end(2, command, tmp_path / "none").stderr.startswith(complaint)


@case_tables.each_case(
    "command, texts, complaint",
    [
        ("convert", [KEPT], f"imagebeam: interrupted; {KEPT}\n"),
        ("convert", [""], "imagebeam: interrupted; run the same command again\n"),
        ("schema", [], "imagebeam: interrupted\n"),
    ],
)
def test_interrupted_command_exits_130(
    command: str, texts: list[str], complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> int:
        raise KeyboardInterrupt(*texts)

    monkeypatch.setattr(cli, f"_{command}", interrupt)
    assert end(130, command).stderr == complaint


def test_verbose_error_has_its_traceback(tmp_path: pathlib.Path) -> None:
    done = end(errors.CatalogError.exit_code, "verify", tmp_path, "-v")
    assert "Traceback (most recent call last):" in done.stderr


def test_missing_package_exits_2_and_names_the_extra(dataset: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    monkeypatch.delitem(sys.modules, "imagebeam.pipelines.config.model", raising=False)
    monkeypatch.delattr("imagebeam.pipelines.config.model", raising=False)
    complaint = end(2, "plan", "--config", "image_folder", "--input", dataset).stderr
    assert complaint.endswith("yaml is not installed, this command needs it: pip install 'imagebeam[convert]'\n")


# --- what is printed -------------------------------------------------------------------------------------------------


def test_version_is_printed() -> None:
    assert end(0, "--version").stdout == f"imagebeam {imagebeam.__version__}\n"


def test_help_names_commands_and_exit_codes() -> None:
    text = end(0, "--help").stdout
    words = ("convert", "plan", "verify", "inspect", "bench", "schema", "exit codes: 0", "2 the command", "4 verif")
    assert all(word in text for word in words)


def test_convert_prints_no_warning_of_a_library(images: pathlib.Path, tmp_path: pathlib.Path) -> None:
    completed = command_line.run("convert", "--input", images, "--output", tmp_path / "my out", exit_code=0)
    lines = completed.stderr.splitlines()
    progress = [line for line in lines if re.match(r"listing images|shards \d", line)]  # of a busy machine
    assert [line for line in lines if line not in progress] == [f"imagebeam {imagebeam.__version__} on FnApiRunner"]
    assert completed.stdout.splitlines()[0] == "listed    10 images (skipped: nothing)"
    assert completed.stdout.splitlines()[-1] == f"next: imagebeam verify '{tmp_path}/my out'"


def test_quiet_convert_prints_nothing(images: pathlib.Path, tmp_path: pathlib.Path) -> None:
    command = ("convert", "-q", "--input", images, "--output", tmp_path / "out")
    for state in ("committed", "kept"):
        completed = command_line.succeed(*command)
        assert (completed.stdout, completed.stderr) == ("", ""), state


def test_output_to_a_reader_that_has_gone_is_no_error(dataset: pathlib.Path) -> None:
    pipe = f"{command_line.PYTHON} -m imagebeam.pipelines.cli inspect {dataset} -n 5 | true; exit ${{PIPESTATUS[0]}}"
    command, options = ["bash", "-c", pipe], {"capture_output": True, "text": True, "check": False}
    completed = subprocess.run(command, cwd=command_line.ROOT, timeout=patience.HANG_SEC, **options)
    assert (completed.returncode, completed.stderr) == (0, "")


def test_file_names_with_control_characters_are_shown_escaped(tmp_path: pathlib.Path) -> None:
    output = tmp_path / "out\x1b[2J"
    image_sets.write_folder(tmp_path / "in", labels=["cat\x1b[31m", "dog"], per_label=2)
    os.rename(tmp_path / "in/cat\x1b[31m/0.jpg", tmp_path / "in/cat\x1b[31m/\udcff\x07\u202e.jpg")
    where = ("--input", tmp_path / "in", "--output", output)
    shown = [end(0, "plan", *where), *(end(0, "convert", *where, "--workers", 1) for _ in range(2))]
    shown += [end(0, "verify", output), end(0, "inspect", output, "-n", 2)]
    shown.append(end(2, "convert", *where, "--set", "split.seed=1"))
    assert all(char.isprintable() or char == "\n" for each in shown for char in each.stdout + each.stderr)
    assert sum(each.stdout.count("0 cat\\x1b[31m") for each in shown) == 1
    assert "out\\x1b[2J holds another dataset" in shown[-1].stderr


def test_text_that_the_terminal_cannot_encode_is_escaped(dataset: pathlib.Path, tmp_path: pathlib.Path) -> None:
    image_sets.write_folder(tmp_path / "in", labels=["кот", "dog"], per_label=1)
    arguments, environment = ("plan", "--input", tmp_path / "in"), {"PYTHONIOENCODING": "ascii"}
    completed = command_line.run(*arguments, environment=environment, exit_code=0)
    assert r"2 classes: dog, \u043a\u043e\u0442" in completed.stdout


# --- plan, inspect, verify, schema, bench ----------------------------------------------------------------------------


@case_tables.each_case("output", {"new-output": "new", "a-dataset": "dataset"})
def test_plan_writes_nothing(
    images: pathlib.Path, dataset: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, output: str
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    folders = (images, dataset.parent, tmp_path)
    before = [snapshot(folder) for folder in folders]
    target = dataset if output == "dataset" else dataset.parent / "new"
    end(0, "plan", "--input", images, "--output", target, "--set", "output.num_shards=2")
    after = [snapshot(folder) for folder in folders]
    after[2][str(tmp_path)] = before[2][str(tmp_path)]  # a temporary folder came and went
    assert after == before


@case_tables.each_case(
    "arguments, exit_code, line",
    [
        ([], 0, r"output +a new folder \(no --output given\): would be written"),
        (["--output", "{new}"], 0, r"output +{new}: would be written"),
        (["--output", "{dataset}"], 0, r"output +{dataset}: nothing to do: {dataset} holds"),
        (
            ["--output", "{dataset}", "--set", "split.seed=1"],
            2,
            r"output +{dataset}: would be refused: {dataset} holds another dataset",
        ),
        (["--output", "{dataset}", "--set", "split.seed=1", "--overwrite"], 0, r"output +{dataset}: would be written"),
    ],
)
def test_plan_says_what_convert_would_do(
    images: pathlib.Path, dataset: pathlib.Path, tmp_path: pathlib.Path, arguments: list[str], exit_code: int, line: str
) -> None:
    def fill(text: str) -> str:
        return text.replace("{dataset}", str(dataset)).replace("{new}", str(tmp_path / "new"))

    shown = end(exit_code, "plan", "--input", images, "--set", "output.num_shards=2", *map(fill, arguments)).stdout
    assert re.search(r"^  train +10 images, \d\.\d kB; 2 shards of 5$", shown, re.MULTILINE)
    assert re.search(r"^labels +2 classes: cat, dog$", shown, re.MULTILINE)
    assert re.search("^" + fill(line), shown, re.MULTILINE)


def test_plan_checks_its_options_before_it_lists_into_a_file(tmp_path: pathlib.Path) -> None:
    image_sets.write_folder(tmp_path / "in", per_label=1)
    done = end(2, "plan", "-q", "--input", tmp_path / "in", "--save-listing", tmp_path / "listing")
    assert "unknown option -q" in done.stderr
    assert not (tmp_path / "listing").exists()


@case_tables.each_case("command", ["convert", "plan"])
def test_missing_pillow_is_refused_before_anything_is_written(
    command: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image_sets.write_folder(tmp_path / "in", per_label=1)
    monkeypatch.setitem(sys.modules, "PIL", None)
    done = end(2, command, "--input", tmp_path / "in", "--output", tmp_path / "out")
    message = "imagebeam: Pillow is not installed, convert needs it: pip install 'imagebeam[convert]'"
    assert message in done.stderr.splitlines()
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("from_yaml", [False, True])
def test_plan_prints_the_whole_command_that_converts_its_listing(from_yaml: bool, tmp_path: pathlib.Path) -> None:
    image_sets.write_folder(tmp_path / "in put", per_label=3)
    (tmp_path / "my pets.yaml").write_text("source: {include: ['cat/**']}\nsplit: {name: all}")
    given = ["--config", tmp_path / "my pets.yaml"] if from_yaml else ["--set", "source.include=['cat/**']"]
    given += ["--output", tmp_path / "out", "--set", "output.num_shards=2", "--overwrite", "--runner=FnApiRunner"]
    listing = tmp_path / "the listing"
    done = end(0, "plan", "--input", tmp_path / "in put", *given, "--workers", 1, "--save-listing", listing)
    first_line = done.stdout.splitlines()[0]
    assert first_line.startswith(f"listed into {listing}; next: imagebeam convert ")
    end(0, *shlex.split(first_line.partition("next: imagebeam ")[2]))
    catalog = imagebeam.load_catalog(str(tmp_path / "out"))
    (split,) = catalog.splits.values()
    assert (catalog.counts.written, len(split.shards)) == (3, 2)
    assert list(catalog.splits) == ["all" if from_yaml else "train"]


def test_inspect_shows_splits_features_and_examples(dataset: pathlib.Path) -> None:
    shown = end(0, "inspect", dataset, "-n", 3).stdout
    assert re.search(r"^  train +10 images, 2 shards, ", shown, re.MULTILINE)
    assert re.search(r"^classes +0 cat, 1 dog$", shown, re.MULTILINE)
    assert re.search(r"^  image/class/label +int64$", shown, re.MULTILINE)
    pattern = r"^train (\d): .*image/class/text=(?:cat|dog)  .*image/encoded=<\d+ bytes>$"
    assert re.findall(pattern, shown, re.MULTILINE) == ["0", "1", "2"]


def test_inspect_saves_images_with_their_bytes(
    images: pathlib.Path, dataset: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    done = end(0, "inspect", dataset, "-n", 10, "--save-to", tmp_path / "saved")
    assert done.stdout.endswith(f"10 images written to {tmp_path / 'saved'}\n")
    saved = sorted((tmp_path / "saved").iterdir())
    assert all(re.fullmatch(r"train-0000\d-(cat|dog)-\1_\d\.(jpg\.jpeg|png\.png)", path.name) for path in saved)
    assert {path.read_bytes() for path in saved} == {path.read_bytes() for path in images.glob("*/*")}


def test_images_are_saved_at_an_address(dataset: pathlib.Path) -> None:
    memory = "memory://saved"
    end(0, "inspect", dataset, "-n", 2, "--save-to", memory)
    store = storage.storage_of(memory)
    assert len(list(store.list_directory(memory))) == 2
    store.remove_tree(memory)


@case_tables.each_case("command", ["inspect", "bench"])
def test_unknown_split_names_the_splits(command: str, dataset: pathlib.Path) -> None:
    assert end(2, command, dataset, "--split", "test").stderr == "imagebeam: --split 'test' is not one of train\n"


@case_tables.each_case("decode", {"bytes": [], "decode": ["--decode"]})
def test_verify_of_good_dataset_exits_0(dataset: pathlib.Path, decode: list[str]) -> None:
    decoded = ", every image decoded" if decode else ""
    pattern = rf"{dataset}: 10 records in 2 shards match the catalog{decoded} \(\d+\.\d s\)\n"
    assert re.fullmatch(pattern, end(0, "verify", dataset, *decode).stdout)


def test_schema_is_printed() -> None:
    assert end(0, "schema").stdout == schema.json_schema()


# --- what needs TensorFlow -------------------------------------------------------------------------------------------


@case_tables.each_case("arguments", {"help": ["--help"], "inspect": ["inspect", "{dataset}", "-n", "1"]})
def test_command_that_does_not_need_tensorflow_does_not_import_it(dataset: pathlib.Path, arguments: list[str]) -> None:
    given = [argument.replace("{dataset}", str(dataset)) for argument in arguments]
    run = f"import sys, imagebeam.pipelines.cli as cli\ntry:\n  cli.main({given})\n"
    code = run + "finally:\n  assert 'tensorflow' not in sys.modules"
    done = command_line.run_python(code)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_bench_prints_a_table_and_a_sentence(dataset: pathlib.Path) -> None:
    small = ("--batch-size", 4, "--image-size", 16, "--seconds", 0.01, "--threads", 1)
    completed = command_line.run("bench", dataset, *small, exit_code=0)
    assert completed.stderr == "measuring 4 x 0.01 s; other running programs lower the result\n"
    lines = completed.stdout.splitlines()
    assert lines[0] == f"dataset   {dataset}, train: 10 images, {lines[0].split(', ')[-1]}"
    reader = "reader    1 thread, batches of 4, 16 x 16 px, bfloat16, decoded by "
    assert lines[1].startswith(reader)
    assert re.fullmatch(r"libjpeg-turbo \S+|TensorFlow", lines[1].removeprefix(reader))  # the latter without libpng
    assert [line.split()[0] for line in lines[2:]][:4] == ["read", "parse", "decode", "together"]
    assert re.fullmatch(r"this host feeds [\d,]+ images/s; the slowest stage is (read|parse|decode)", lines[-1])


def test_bench_prints_json(dataset: pathlib.Path) -> None:
    pytest.importorskip("tensorflow")
    asked = ("--split", "train[:50%]", "--batch-size", 2, "--image-size", 8, "--dtype", "uint8", "--seconds", 0.01)
    found = json.loads(end(0, "bench", dataset, "--json", *asked).stdout)
    assert (found["split"], found["num_examples"], found["dtype"]) == ("train[:50%]", 5, "uint8")
    speeds = {name: stage["images_per_second"] for name, stage in found["stages"].items()}
    assert found["slowest"] == min(speeds, key=speeds.__getitem__)


def test_bench_takes_the_first_split_where_none_is_called_train(images: pathlib.Path, tmp_path: pathlib.Path) -> None:
    pytest.importorskip("tensorflow")
    split, output = {"by": "none", "name": "all"}, {"uri": str(tmp_path / "out")}
    convert.convert({"source": {"uri": str(images)}, "split": split, "output": output}, workers=1)
    done = end(0, "bench", tmp_path / "out", "--batch-size", 2, "--image-size", 8, "--seconds", 0.01)
    assert "out, all: 10 images" in done.stdout


def test_lines_of_libraries_are_held_back_while_they_are_imported(capfd: pytest.CaptureFixture[str]) -> None:
    with terminal.hush_libraries():
        os.write(2, b"I0000 oneDNN custom operations are on.\n")
    os.write(2, b"I0000 later\n")
    assert capfd.readouterr().err == "I0000 later\n"


def test_lines_of_libraries_are_shown_where_the_import_fails(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ImportError), terminal.hush_libraries():
        os.write(2, b"E0000 this library is of another version \xff\n")
        raise ImportError
    assert capfd.readouterr().err == "E0000 this library is of another version \ufffd\n"


def test_import_that_kills_the_process_still_names_its_place() -> None:
    code = (
        "import os\nfrom imagebeam.pipelines.messages import terminal\n"
        "with terminal.hush_libraries():\n    os.write(2, b'noise')\n    os.abort()\n"
    )
    done = command_line.run_python(code)
    assert done.returncode == -signal.SIGABRT
    assert done.stderr.startswith("Fatal Python error: Aborted")
