"""Sources of the user: the class of examples/pets.py and smaller ones, by whole conversions."""

from __future__ import annotations

import pathlib
import pickle
import py_compile
import sys
from typing import Any

import pytest

from imagebeam import errors
from imagebeam.pipelines import convert
from imagebeam.pipelines import job as job_lib
from imagebeam.pipelines.config import model as config_lib
from imagebeam.sources import ImageRef, Reject, Request
from imagebeam.transforms import elements
from imagebeam.transforms.formats import own_source
from imagebeam.transforms.sources import image_source, table_rows
from tests import case_tables, command_line, datasets, error_texts, image_sets, job_graphs, own_sources, snapshot_sets


@pytest.fixture(autouse=True)
def modules(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A folder of the user's modules, on the path beside the examples."""
    monkeypatch.syspath_prepend(own_sources.EXAMPLES)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.fixture
def pets(tmp_path: pathlib.Path) -> pathlib.Path:
    return own_sources.write_pets(tmp_path / "in")


@pytest.fixture
def photos(tmp_path: pathlib.Path) -> pathlib.Path:
    """The two images of `own_sources.MINIMAL`."""
    for number, name in enumerate(("cat/0.jpg", "dog/1.jpg")):
        (tmp_path / "photos" / name).parent.mkdir(parents=True)
        (tmp_path / "photos" / name).write_bytes(image_sets.make_image(number))
    return tmp_path / "photos"


def source_of(**settings: Any) -> image_source.ImageSource:
    return job_lib.make_source(config_lib.parse_config({"output": {"uri": "out"}, **settings}, where="a test"))


def fingerprint(source: dict[str, Any], **sections: Any) -> str:
    return convert.plan({"source": source, **sections}).fingerprint


def refusal(module: str, photos: pathlib.Path | None, **sections: Any) -> str:
    """Returns why nothing would be written."""
    source = {"by": f"{module}:Photos", **({"uri": str(photos)} if photos else {})}
    plan = convert.plan({"source": source, **sections})
    assert plan.action == "refuse"
    return plan.message


# --- what it reads ----------------------------------------------------------------------------------------------------


def test_example_reads_paths_and_bytes_with_labels_splits_and_columns(
    pets: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    datasets.make(pets, tmp_path / "out", **own_sources.CONFIG)
    found = {
        each["name"].decode(): each for split in ("train", "test") for each in datasets.read(tmp_path / "out", split)
    }
    numbers = range(2, own_sources.NUM_PETS)
    assert set(found) == {f"pet {number}" for number in numbers}
    for number in numbers:
        example = found[f"pet {number}"]
        assert example["image/encoded"] == image_sets.make_image(number)
        assert example["image/class/text"] == (b"cat", b"dog")[number % 3 == 0]
        assert example["image/key"].decode() == (f"{number}.jpg" if number % 2 else f"pets://{number}")
    assert {each["name"] for each in datasets.read(tmp_path / "out", "test")} == {b"pet 5", b"pet 10", b"pet 15"}


def test_class_with_images_alone_is_a_source(photos: pathlib.Path, tmp_path: pathlib.Path) -> None:
    module = own_sources.write_module(tmp_path, own_sources.MINIMAL)
    datasets.make(photos, tmp_path / "out", source={"by": f"{module}:Photos"})
    assert {each["image/key"]: each["image/class/text"] for each in datasets.read(tmp_path / "out")} == {
        b"cat/0.jpg": b"cat",
        b"dog/1.jpg": b"dog",
    }


def test_format_of_its_own_may_return_a_built_in_source(photos: pathlib.Path, tmp_path: pathlib.Path) -> None:
    text = """
import dataclasses
from imagebeam.sources import Format, Gives
from imagebeam.transforms.formats import base_format

@dataclasses.dataclass(frozen=True)
class Photos(Format):
    def gives(self):
        return Gives(folders=True)

    def open(self, request):
        return base_format.format_of("files")().open(request._replace(uri=f"{request.uri}/photos"))
"""
    module = own_sources.write_module(tmp_path, text)
    (tmp_path / "above").mkdir()
    photos.rename(tmp_path / "above" / "photos")
    datasets.make(tmp_path / "above", tmp_path / "out", source={"by": f"{module}:Photos"})
    assert sorted(datasets.keys(tmp_path / "out")) == ["cat/0.jpg", "dog/1.jpg"]


def test_image_that_cannot_be_read_or_has_another_size_is_a_reject(pets: pathlib.Path, tmp_path: pathlib.Path) -> None:
    text = (own_sources.EXAMPLES / "pets.py").read_text()
    text = text.replace('"SELECT photo FROM pets WHERE id = ?"', '"SELECT photo FROM later WHERE id = ?"')
    module = own_sources.write_module(tmp_path, text)
    own_sources.change(pets, "CREATE TABLE later AS SELECT id, photo FROM pets WHERE id > 4")
    own_sources.change(pets, "UPDATE later SET photo = x'00' WHERE id = 6")
    (pets.parent / "7.jpg").unlink()
    source = {**own_sources.CONFIG["source"], "by": f"{module}:Pets"}
    datasets.make(pets, tmp_path / "out", **{**own_sources.CONFIG, "source": source, "rejects": {"max_fraction": 0.5}})
    assert datasets.rejects(tmp_path / "out") == {
        "pets://2": "not_found",
        "pets://4": "not_found",
        "pets://6": "changed",
        "7.jpg": "not_found",
    }


def test_value_that_does_not_fit_is_a_reject_of_its_row(pets: pathlib.Path, tmp_path: pathlib.Path) -> None:
    own_sources.change(pets, "UPDATE pets SET name = '' WHERE id = 4")
    datasets.make(pets, tmp_path / "out", **{**own_sources.CONFIG, "rejects": {"max_fraction": 0.5}})
    assert datasets.rejects(tmp_path / "out") == {"pets://4": "bad_value"}


def test_index_counts_the_images_as_they_come(pets: pathlib.Path, tmp_path: pathlib.Path) -> None:
    split = {"by": "index", "counts": {"first": 3, "rest": None}}
    datasets.make(pets, tmp_path / "out", **{**own_sources.CONFIG, "split": split})
    assert {each["name"] for each in datasets.read(tmp_path / "out", "first")} == {b"pet 2", b"pet 3", b"pet 4"}


# --- references -------------------------------------------------------------------------------------------------------


@case_tables.each_case(
    "uri, given, expected",
    {
        "below": ("a/b.jpg", "IN", ("a/b.jpg", "IN/a/b.jpg")),
        "below the folder of a file": ("a/b.jpg", "IN/pets.db", ("a/b.jpg", "IN/a/b.jpg")),
        "elsewhere": ("/x/b.jpg", "IN", ("/x/b.jpg", "/x/b.jpg")),
        "network": ("gs://b/c.jpg", "IN", ("gs://b/c.jpg", "gs://b/c.jpg")),
        "own scheme": ("pets://3", "", ("pets://3", "pets://3")),
    },
)
def test_reference_has_an_address_and_a_key(
    pets: pathlib.Path, uri: str, given: str, expected: tuple[str, str]
) -> None:
    folder = str(pets.parent)
    found = Request(given.replace("IN", folder)).reference(uri, size=3, version=4)
    assert isinstance(found, ImageRef)
    assert (found.key, found.uri.replace(folder, "IN"), found.size, found.version) == (*expected, 3, 4)


def test_reference_of_a_bad_value_is_a_reject() -> None:
    fields = table_rows.RowFields(columns=(table_rows.Column("age", "int64"),))
    found = Request("", fields=fields).reference("/in/a.jpg", {"age": "old"}, key="7")
    assert found == Reject("7", "/in/a.jpg", "list", elements.Reason.BAD_VALUE, "column 'age': 'old' is not an integer")


def test_reference_without_a_column_or_a_folder_is_an_error() -> None:
    with error_texts.raises("source-no-column"):
        Request("/in", fields=table_rows.RowFields(label="kind")).reference("a.jpg", {"species": "cat"})
    with error_texts.raises("source-no-folder"):
        Request("").reference("a.jpg")


# --- what is wrong ----------------------------------------------------------------------------------------------------

HEAD = "import dataclasses\nfrom imagebeam.sources import *\n"
FROZEN = "@dataclasses.dataclass(frozen=True)\n"
IMAGES = "    def images(self, request):\n        yield from ()\n"
READ = "    def read_image(self, request, uri):\n        return b''\n"


@case_tables.each_case(
    "text, code",
    {
        "no class": ("Photos = 3\n", "source-no-format"),
        "another class": (f"{FROZEN}class Photos:\n{IMAGES}", "source-no-format"),
        "without the decorator": (f"class Photos(Source):\n    limit: int = 1\n{IMAGES}", "source-no-format"),
        "not frozen": ("@dataclasses.dataclass\nclass Photos:\n    limit: int = 1\n", "source-no-format"),
        "without images": (f"{FROZEN}class Photos(Source):\n    pass\n", "source-no-format"),
        "read_image without a scheme": (f"{FROZEN}class Photos(Source):\n{IMAGES}{READ}", "source-scheme"),
        "scheme without read_image": (f"{FROZEN}class Photos(Source):\n    SCHEME = 'a'\n{IMAGES}", "source-scheme"),
        "bad scheme": (f"{FROZEN}class Photos(Source):\n    SCHEME = 'A://'\n{IMAGES}{READ}", "source-scheme"),
        "nothing of this name": ("", "user-code-missing"),
        "module that fails": ("1 / 0\n", "user-code-failed"),
        "open that fails": (
            f"{FROZEN}class Photos(Format):\n    def open(self, request):\n        raise KeyError('x')\n",
            "user-code-failed",
        ),
        "inside a function": (
            f"def make():\n    {FROZEN}    class Photos(Source):\n    {IMAGES.replace(chr(10), chr(10) + '    ')}\n"
            "    return Photos\nPhotos = make()\n",
            "user-code-failed",
        ),
    },
)
def test_class_that_is_no_source_is_refused(modules: pathlib.Path, text: str, code: str) -> None:
    module = own_sources.write_module(modules, HEAD + text)
    with pytest.raises(errors.ConfigError) as caught:
        source_of(source={"by": f"{module}:Photos"})
    error_texts.check(type(caught.value)(caught.value.code, str(caught.value).replace(module, "photos")), code)


def test_path_that_names_no_class_is_refused() -> None:
    for path in (":Pets", "pets:", "pets.py:Pets:x", "../pets:Pets"):
        with error_texts.raises("user-code-form"):
            source_of(source={"by": path})


@case_tables.each_case(
    "settings, expected",
    {
        "unknown option": (
            {"options": {"min_widht": 3}},
            "unknown key 'source.options.min_widht'; did you mean 'min_wi",
        ),
        "another option": ({"options": {"x": 3}}, "unknown key 'source.options.x'; known are min_width"),
        "bad value": ({"options": {"min_width": "x"}}, "source.options.min_width: input should be a valid integer"),
        "no mapping": ({"options": 3}, "source.options: input should be a mapping, got 3"),
        "no module": ({"by": "pets.Pets"}, "MODULE:CLASS is a source of your own"),
        "misspelt": ({"by": "manifst", "options": {"a": 1}}, "got 'manifst'; did you mean 'manifest'?"),
        "options of a format": (
            {"by": "yolo", "options": {"a": 1}},
            "source.options needs source.by: MODULE:CLASS; not yolo",
        ),
        "version of a format": (
            {"by": "yolo", "version": "1"},
            "source.version needs source.by: MODULE:CLASS; not yolo",
        ),
        "include": ({"include": "*.jpg"}, "source.include needs source.by: files, "),
    },
)
def test_setting_that_cannot_be_meant_is_refused(settings: dict[str, Any], expected: str) -> None:
    with error_texts.raises("config-invalid") as caught:
        source_of(source={"by": "pets:Pets", **settings})
    assert expected in str(caught.value)
    assert "; source" not in str(caught.value)  # one error, and none that follows from it


@case_tables.each_case(
    "images, expected",
    {
        "another type": ("yield 3", "Photos.images fails (TypeError: yields int, expected ImageRef or Reject"),
        "error": ("yield from {}['x']", "Photos.images fails (KeyError: 'x', MODULE.py line "),
        "no column": (
            "yield request.reference('a', {'b': 1})",
            "the config names the column 'age', and the source gives 'b'",
        ),
        "direct": ("yield ImageRef('a', '/a')", "ValueError: '/a' has 0 columns, the config 1: use request.reference"),
        "missing value": (
            "yield request.reference('a', {'age': ''})",
            "column 'age' is empty, and columns.age.missing is",
        ),
        "no size": (
            "yield request.reference('my://1', {'age': 1})",
            "'my://1' has no size, which decides the number of",
        ),
        "size of None": (
            "yield request.reference('my://1', {'age': 1}, size=None)",
            "'my://1' has the size None, expected int",
        ),
        "key of a number": ("yield request.reference('a', {'age': 1}, key=7)", "has the key 7, expected str"),
        "version alone": (
            "yield request.reference('a', {'age': 1}, version=7)",
            "has a version and no size: give both",
        ),
        "one key twice": (
            "yield from [request.reference('my://1', {'age': 1}, key='k', size=1)] * 2",
            "the key 'k': my://1 and my://1; give each image its own key (request.reference(..., key=...))",
        ),
    },
)
def test_images_that_cannot_be_used_end_the_run(
    photos: pathlib.Path, modules: pathlib.Path, images: str, expected: str
) -> None:
    head = f"{HEAD}{FROZEN}class Photos(Source):\n    SCHEME = 'my'\n    def images(self, request):\n"
    module = own_sources.write_module(modules, f"{head}        {images}\n{READ}")
    columns = {"columns": {"age": {"type": "int", "missing": "error"}}, "label": {"by": "none"}}
    assert expected in refusal(module, photos, **columns).replace(module, "MODULE")


def test_error_of_read_image_ends_the_run_and_names_the_image(tmp_path: pathlib.Path) -> None:
    images = "    def images(self, request):\n        yield request.reference('my://1', size=1)\n"
    for read, expected in (("return 'text'", "TypeError"), ("raise ValueError('no')", "ValueError: no")):
        read_image = f"    def read_image(self, request, uri):\n        {read}\n"
        text = f"{HEAD}{FROZEN}class Photos(Source):\n    SCHEME = 'my'\n{images}{read_image}"
        module = own_sources.write_module(tmp_path, text)
        config = {
            "source": {"by": f"{module}:Photos"},
            "label": {"by": "none"},
            "output": {"uri": str(tmp_path / "out")},
        }
        with pytest.raises(errors.ImagebeamError, match=f"it fails to read 'my://1' \\({expected}"):
            convert.convert(config, workers=1)


# --- the dataset that it makes ----------------------------------------------------------------------------------------


def test_change_of_the_module_makes_another_dataset_unless_there_is_a_version(
    photos: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    module = own_sources.write_module(tmp_path, own_sources.MINIMAL)
    source = {"by": f"{module}:Photos", "uri": str(photos)}
    first, with_version = fingerprint(source), fingerprint({**source, "version": "1"})
    assert fingerprint(source) == first
    (tmp_path / f"{module}.py").write_text(own_sources.MINIMAL + "# changed\n")
    del sys.modules[module]
    assert fingerprint({**source, "version": "1"}) == with_version
    assert len({first, with_version, fingerprint(source), fingerprint({**source, "version": "2"})}) == 4


def test_module_without_source_code_needs_a_version(photos: pathlib.Path, modules: pathlib.Path) -> None:
    module = own_sources.write_module(modules, own_sources.MINIMAL)
    path = modules / f"{module}.py"
    py_compile.compile(str(path), str(path.with_suffix(".pyc")))
    path.unlink()
    source = {"by": f"{module}:Photos", "uri": str(photos)}
    with pytest.raises(errors.ConfigError) as caught:
        convert.plan({"source": source})
    text = str(caught.value).replace(module, "photos")
    error_texts.check(errors.ConfigError(caught.value.code, text), "user-code-without-source")
    assert convert.plan({"source": {**source, "version": "1"}}).listed == 2


def test_options_that_are_defaults_or_places_do_not_count(photos: pathlib.Path, tmp_path: pathlib.Path) -> None:
    text = own_sources.MINIMAL.replace(
        "(Source):\n", "(Source):\n    PLACES = {'where': True}\n    where: str = ''\n    n: int = 1\n"
    )
    module = own_sources.write_module(tmp_path, text)
    source = {"by": f"{module}:Photos", "uri": str(photos)}
    first = fingerprint(source)
    assert {fingerprint({**source, "options": each}) for each in ({"n": 1}, {"n": "1"}, {"where": "x"})} == {first}
    assert fingerprint({**source, "options": {"n": 2}}) != first


def test_moved_database_is_the_same_input(pets: pathlib.Path, tmp_path: pathlib.Path) -> None:
    first = convert.plan(own_sources.config_of(pets)).fingerprint
    pets.parent.rename(tmp_path / "moved")
    assert convert.plan(own_sources.config_of(tmp_path / "moved" / "pets.db")).fingerprint == first


@case_tables.each_case(
    "split",
    {
        "column": {"by": "column", "column": "split"},
        "group": {"by": "hash", "fractions": {"train": 0.5, "test": 0.5}, "group": "name"},
    },
)
def test_update_reads_changed_rows_alone(tmp_path: pathlib.Path, split: dict[str, Any]) -> None:
    pets = own_sources.write_pets(tmp_path / "in")
    config = own_sources.config_of(pets, output={"uri": str(tmp_path / "out")}, split=split)
    convert.convert(config, update=True, workers=1)
    own_sources.change(pets, "UPDATE pets SET photo = ?, changed = 2 WHERE id = 4", image_sets.make_image(99))
    own_sources.change(pets, "UPDATE pets SET species = 'dog' WHERE id = 2")
    own_sources.change(pets, "DELETE FROM pets WHERE id = 7")
    (pets.parent / "9.jpg").write_bytes(image_sets.make_image(98))
    result = convert.convert(config, update=True, workers=1)
    compared = result.catalog.snapshot
    assert (compared["added"], compared["changed"], compared["removed"]) == (0, 3, 1)
    convert.convert({**config, "output": {"uri": str(tmp_path / "at once")}}, update=True, workers=1)
    updated, at_once = (
        {key: stored.split for key, stored in snapshot_sets.living(tmp_path / name).items()}
        for name in ("out", "at once")
    )
    assert updated == at_once


# --- workers ----------------------------------------------------------------------------------------------------------


def test_graph_of_a_job_holds_the_path_of_the_class_and_no_code(pets: pathlib.Path, tmp_path: pathlib.Path) -> None:
    graph = job_graphs.graph_of(tmp_path, **own_sources.config_of(pets, output={"uri": str(tmp_path / "out")}))
    pickles = [*job_graphs.pickles_in(graph)]
    assert any(b"pets:Pets" in each for each in pickles)
    assert not any(b"SELECT" in each for each in [*pickles, graph])


@case_tables.each_case(
    "change, code",
    {
        "missing": (lambda path: path.unlink(), "user-code-missing"),
        "other": (lambda path: path.write_text(own_sources.MINIMAL + "# other\n"), "user-code-differs"),
    },
)
def test_worker_without_the_same_class_says_so(
    photos: pathlib.Path, modules: pathlib.Path, tmp_path: pathlib.Path, change: Any, code: str
) -> None:
    module = own_sources.write_module(modules, own_sources.MINIMAL)
    pickled = pickle.dumps(source_of(source={"by": f"{module}:Photos", "uri": str(photos)}))
    change(modules / f"{module}.py")
    (tmp_path / "pickled").write_bytes(pickled)
    program = "import pickle, sys; next(pickle.load(open(sys.argv[1], 'rb')).list_all())"
    done = command_line.finish(
        command_line.start_program(
            program, tmp_path / "pickled", environment={"PYTHONPATH": f"{command_line.ROOT}:{modules}"}
        )
    )
    found = errors.find_in(done.stderr.strip().splitlines()[-1], RuntimeError())
    assert isinstance(found, errors.ConfigError)
    error_texts.check(errors.ConfigError(code, str(found).replace(module, "photos")), code)


def test_public_names_import_no_beam_and_no_pydantic() -> None:
    code = "import sys, imagebeam.sources; print({'apache_beam', 'pydantic', 'tensorflow'} & set(sys.modules))"
    assert command_line.run_python(code, exit_code=0).stdout.strip() == "set()"


# --- commands ---------------------------------------------------------------------------------------------------------


def test_saved_listing_of_own_source_is_refused(pets: pathlib.Path, tmp_path: pathlib.Path) -> None:
    done = command_line.end(
        2, "plan", "--set", "source.by=pets:Pets", "--input", pets, "--save-listing", tmp_path / "l"
    )
    assert "--save-listing is for folders: source.by pets:Pets does not list one" in done.stderr
    assert not (tmp_path / "l").exists()


def test_module_in_the_folder_of_the_command_is_found(photos: pathlib.Path, tmp_path: pathlib.Path) -> None:
    module = own_sources.write_module(tmp_path / "photos", own_sources.MINIMAL)
    done = command_line.run("plan", "--input", photos, "--set", f"source.by={module}:Photos", cwd=photos, exit_code=0)
    assert "listed       2 images" in done.stdout


def test_opened_once_in_a_process(pets: pathlib.Path) -> None:
    source = source_of(**own_sources.config_of(pets, output={"uri": "out"}))
    assert isinstance(source, own_source.OwnSource)
    copy = pickle.loads(pickle.dumps(source))
    assert (copy, hash(copy)) == (source, hash(source))
    assert own_source._open(copy) is own_source._open(source)
