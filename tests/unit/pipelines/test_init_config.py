"""`imagebeam init`: the config that it writes for a folder."""

from __future__ import annotations

import itertools
import pathlib
import re

import pytest
import yaml

from imagebeam.pipelines import init_config
from imagebeam.pipelines.config import model as config_lib
from imagebeam.pipelines.recognize import recognize_folder
from tests import case_tables, command_line, error_texts, folder_shapes

CLASSES = folder_shapes.SHAPES["classes"][2]


def write(
    tmp_path: pathlib.Path, tree: folder_shapes.Tree, preset: str | None = None
) -> tuple[init_config.Written, str]:
    """Returns what is written for a folder, and the path of the file."""
    written = init_config.make(str(folder_shapes.write(tmp_path / "in", tree)), preset)
    path = str(tmp_path / "imagebeam.yaml")
    init_config.write(written, path)
    return written, path


@case_tables.each_case("shape", list(folder_shapes.SHAPES))
def test_config_of_each_shape_is_its_preset_and_explains_itself(tmp_path: pathlib.Path, shape: str) -> None:
    written, path = write(tmp_path, folder_shapes.SHAPES[shape][2])
    check_that_it_is_the_preset(written, path)
    check_that_every_key_has_a_comment_of_one_line(written.text.splitlines())
    check_that_what_is_commented_out_can_be_put_into_effect(written.text.splitlines())


def check_that_it_is_the_preset(written: init_config.Written, path: str) -> None:
    found, chosen = written.found, written.chosen
    places = [f"source.uri={found.address(chosen)}"]
    expected = config_lib.load_config(chosen.preset, [*recognize_folder.overrides_of(chosen), *places])
    given = config_lib.load_config(path)
    assert given.output.uri is not None
    kept = given.model_copy(update={"output": given.output.model_copy(update={"uri": None})})
    assert kept == expected


def check_that_every_key_has_a_comment_of_one_line(lines: list[str]) -> None:
    sections = re.compile(r"\s*(# )?\w+:")
    for above, line in itertools.pairwise(lines):
        if line.strip() and not line.lstrip().startswith("#") and not sections.fullmatch(line):
            is_in_mapping = bool(re.match(r"\s{2,}\S+: ", line)) and not above.lstrip().startswith("#")
            assert above.lstrip().startswith("# ") or is_in_mapping, (above, line)
            assert len(above) <= 130


def check_that_what_is_commented_out_can_be_put_into_effect(lines: list[str]) -> None:
    start, number = lines.index(""), 0
    for index in range(start, len(lines)):
        suggestion = re.fullmatch(r"( *)# (\w+): \S.*", lines[index])
        if suggestion is None or suggestion[2] in ("by", "fractions", "stratify"):  # several that go together
            continue
        changed = [*lines]
        for above in range(index, start, -1):  # the key, and sections above it that are commented out, too
            indent = len(suggestion[1]) if above == index else len(suggestion[1]) - 2
            if above == index or re.fullmatch(rf" {{{indent}}}# \w+:", lines[above]):
                changed[above] = lines[above].replace("# ", "", 1)
            if above != index and re.match(rf" {{{indent}}}(# )?\w+:$", lines[above]):
                break
        config_lib.parse_config(yaml.safe_load("\n".join(changed)), lines[index])
        number += 1
    assert number >= 3


def test_config_is_refused_over_a_file_unless_forced(tmp_path: pathlib.Path) -> None:
    written, path = write(tmp_path, CLASSES)
    with error_texts.raises("init-file-exists"):
        init_config.write(written, path)
    pathlib.Path(path).write_text("mine")
    init_config.write(written, path, force=True)
    assert pathlib.Path(path).read_text() == written.text


def test_config_that_cannot_be_written_is_an_error(tmp_path: pathlib.Path) -> None:
    written, _ = write(tmp_path, CLASSES)
    with error_texts.raises("init-unwritable"):
        init_config.write(written, f"{tmp_path}/none/x.yaml")


def test_preset_can_be_named(tmp_path: pathlib.Path) -> None:
    written, path = write(tmp_path, CLASSES, "flowers")
    assert (
        "Preset flowers (not beyond doubt): chosen with --config; nothing in the folder speaks for it." in written.text
    )
    assert config_lib.load_config(path).features.renamed["image/key"] == "image/key"
    assert "# Also possible, by imagebeam init with --config:\n#   image_folder in " in written.text


def test_file_instead_of_a_preset_is_an_error(tmp_path: pathlib.Path) -> None:
    (tmp_path / "own.yaml").write_text("source: {by: files}")
    with error_texts.raises("config-unknown"):
        write(tmp_path, CLASSES, f"{tmp_path}/own.yaml")


def test_folder_of_nothing_known_is_an_error(tmp_path: pathlib.Path) -> None:
    folder_shapes.write(tmp_path, {"run.py": "", "film.mp4": ""})
    with error_texts.raises("folder-not-recognized"):
        init_config.make(str(tmp_path))


def test_names_of_files_cannot_end_a_comment(tmp_path: pathlib.Path) -> None:
    tree = folder_shapes.images("cat\nrejects: {max_fraction: 1}/#.jpg", "dog/#.jpg")
    written, path = write(tmp_path, tree)
    assert "cat\\nrejects" in written.text
    assert config_lib.load_config(path).rejects.max_fraction == 0.01


@case_tables.each_case(
    "uri, output",
    [
        ("photos", "photos-tfrecords"),
        ("/data/photos/", "photos-tfrecords"),
        ("gs://bucket/photos", "gs://bucket/photos-tfrecords"),
        ("gs://bucket", "bucket-tfrecords"),
        ("/", "images-tfrecords"),
    ],
)
def test_dataset_goes_beside_a_remote_folder_or_into_the_current_one(uri: str, output: str) -> None:
    assert init_config._default_output(uri) == output


def test_config_of_init_is_planned_and_converted(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder_shapes.write(tmp_path, {f"pets/{name}": each for name, each in CLASSES.items()}))
    done = command_line.succeed("init", "pets")
    assert done.stdout == (
        "recognized  image_folder: 3 folders of images (cat, dog, owl)\n"
        "written     imagebeam.yaml\n"
        "next: imagebeam plan --config imagebeam.yaml\n"
        "then: imagebeam convert --config imagebeam.yaml\n"
    )
    assert "listed       12 images" in command_line.succeed("plan", "--config", "imagebeam.yaml").stdout
    command_line.succeed("convert", "--config", "imagebeam.yaml", "-q")
    assert (tmp_path / "pets-tfrecords" / "catalog.json").is_file()
    again = command_line.call("init", "pets")
    assert (again.returncode, "exists already" in again.stderr) == (2, True)
