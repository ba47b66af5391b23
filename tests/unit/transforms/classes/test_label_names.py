"""Names of label files, in the job graph or in a file beside it."""

from __future__ import annotations

import os
import pathlib
import pickle
import threading
from collections.abc import Iterable, Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from imagebeam import errors, storage
from imagebeam.transforms import elements
from imagebeam.transforms.classes import label_names
from imagebeam.transforms.classes.label_names import LabelNames, ListSurvey, ListUse, StagedNames
from imagebeam.transforms.elements import ImageRef, Reason
from imagebeam.transforms.sources import image_source, reference_rules, table_rows
from tests import error_texts

NAMES = LabelNames(("cat", "d\udcf6g", "größe"), {"cat": "Felis catus\u2028", "d\udcf6g": "dog"}, (("val", ("cat",)),))


@pytest.fixture(autouse=True)
def _nothing_read_yet() -> Iterator[None]:
    label_names._read.cache_clear()
    yield
    label_names._read.cache_clear()


def unpickled(names: StagedNames) -> StagedNames:
    return pickle.loads(pickle.dumps(names))  # type: ignore[no-any-return]


def content_of(names: LabelNames | StagedNames) -> tuple[object, object, object]:
    return names.vocabulary, list(names.texts.items()), names.lists


texts = st.text(max_size=5)


@given(vocabulary=st.none() | st.lists(texts).map(tuple), texts=st.dictionaries(texts, texts))
def test_any_names_survive_the_file(vocabulary: tuple[str, ...] | None, texts: dict[str, str]) -> None:
    names = LabelNames(vocabulary, texts)
    assert content_of(label_names._decode(label_names._encode(names))) == content_of(names)


def test_pickle_of_staged_names_holds_only_their_address() -> None:
    staged = StagedNames("gs://b/o/names.json", LabelNames(tuple(map(str, range(10_000)))))
    assert len(pickle.dumps(staged)) < 200
    assert unpickled(staged).address == staged.address  # without reading the file, which does not exist


def test_process_reads_the_file_once_for_all_threads(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    staged = StagedNames(str(tmp_path / "names.json"), NAMES)
    staged.write()
    copies = [unpickled(staged) for _ in range(8)]
    store, reads = storage.storage_of(staged.address), []
    read = store.read
    monkeypatch.setattr(type(store), "read", lambda self, uri, *more: reads.append(uri) or read(uri, *more))
    threads = [threading.Thread(target=lambda each=each: each.vocabulary) for each in copies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [content_of(each) for each in copies] == [content_of(NAMES)] * 8
    assert reads == [staged.address]


def test_long_names_are_staged_and_short_ones_not() -> None:
    limit = label_names.MAX_IN_GRAPH
    short, long = LabelNames(("a" * (limit - 1),), {"b": ""}), LabelNames(("a" * (limit - 1),), {}, (("val", ("bc",)),))
    assert label_names.stage_if_long(short, "/a/names.json") is short
    assert isinstance(label_names.stage_if_long(long, "/a/names.json"), StagedNames)
    assert label_names.stage_if_long(long, "") is long


def test_names_that_are_gone_are_an_error_with_the_remedy(tmp_path: pathlib.Path) -> None:
    staged = StagedNames(str(tmp_path / "names.json"), NAMES)
    staged.write()
    copy = unpickled(staged)
    staged.remove()
    staged.remove()  # gone already
    assert os.listdir(tmp_path) == []
    with error_texts.raises("label-names-gone"):
        assert copy.texts


def test_names_that_cannot_be_written_are_an_error_before_the_job(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_text("")
    with error_texts.raises("label-names-unwritable"):
        StagedNames(str(tmp_path / "file" / "names.json"), NAMES).write()


# ---- label files


def write(folder: pathlib.Path, data: str | bytes) -> str:
    (folder / "file.txt").write_bytes(data if isinstance(data, bytes) else data.encode())
    return str(folder / "file.txt")


def test_texts_of_classes_are_read(tmp_path: pathlib.Path) -> None:
    for data, expected in [
        ("n1 tench, Tinca\nn2 goldfish\n", {"n1": "tench, Tinca", "n2": "goldfish"}),
        ("n1\ttench, Tinca\r\nn2\tgoldfish", {"n1": "tench, Tinca", "n2": "goldfish"}),
        ("great white\tthe shark\n", {"great white": "the shark"}),
        ("n1 a\tb\nn2 c\n", {"n1": "a\tb", "n2": "c"}),  # not every line has a tab
        ("\ufeffn1  été \n", {"n1": "été"}),
    ]:
        assert label_names.read_texts(write(tmp_path, data)) == expected


def test_label_files_that_cannot_be_used_are_a_config_error(tmp_path: pathlib.Path) -> None:
    for code, data in [
        ("label-texts-bad-line", "n1 a\nn2\n"),
        ("label-texts-bad-line", "n1\ta\nn2\t \n"),
        ("label-texts-bad-line", "n1 a\n\nn2 b\n"),
        ("label-texts-bad-line", "\ta\n"),
        ("label-texts-bad-line", "n1 a\nn1 b\n"),
        ("label-file-empty", ""),
        ("label-file-not-utf8", b"n1 a\nn2 caf\xe9\n"),
        ("label-file-not-utf8", "n1 a\n".encode("utf-16")),
    ]:
        with error_texts.raises(code):
            label_names.read_texts(write(tmp_path, data))
    for data in ("", "a\n \nb\n", "a\nb\n\n"):
        with error_texts.raises("label-file-empty-line"):
            label_names.read_lists({"val": write(tmp_path, data)})
    for code, data in [("label-file-empty-line", "cat\n\ndog\n"), ("vocabulary-repeats-class", "a\nb\na\n")]:
        with error_texts.raises(code):
            label_names.read_vocabulary(write(tmp_path, data))
    with error_texts.raises("label-file-unreadable"):
        label_names.read_vocabulary(str(tmp_path / "none"))


def test_vocabulary_of_a_column_is_text_spelled_as_its_cells(tmp_path: pathlib.Path) -> None:
    uri = write(tmp_path, b"10.0\n cat \ncaf\xe9\n")
    assert label_names.read_vocabulary(uri) == ("10.0", " cat ", "caf\udce9")  # a folder's name may be any bytes
    with error_texts.raises("label-file-not-utf8"):
        label_names.read_vocabulary(uri, in_column=True)
    assert label_names.read_vocabulary(write(tmp_path, "10.0\n cat \n"), in_column=True) == ("10", "cat")
    assert label_names.read_texts(write(tmp_path, "10.0 ten\n"), in_column=True) == {"10": "ten"}


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(st.lists(st.sampled_from([b"n1", b"n2", b" ", b"\t", b"\n", b"\r", b"\xff", b"\x00", b"\xe2\x80\xa8", b"x"])))
def test_any_bytes_are_read_or_a_config_error(tmp_path: pathlib.Path, parts: list[bytes]) -> None:
    uri = write(tmp_path, b"".join(parts))
    try:
        texts = label_names.read_texts(uri)
        assert all(name and text.strip() for name, text in texts.items())
    except errors.ConfigError as e:
        assert "file.txt" in str(e)
    try:
        ((_, labels),) = label_names.read_lists({"val": uri})
        assert all(labels)
    except errors.ConfigError as e:
        assert "file.txt" in str(e)


# ---- labels by the number of an image


LISTS = (("val", ("cat", "dog", "cat")),)
RULE = reference_rules.LabelRule("directory", level=1, names=label_names.LabelNames(lists=LISTS))


def ref(key: str) -> ImageRef:
    return ImageRef(key, f"/data/{key}")


def test_number_of_a_name_stands_before_its_extension() -> None:
    for key, number in [
        ("val/ILSVRC2012_val_00000293.JPEG", 293),  # imagenet
        ("val/7.jpg", 7),  # alone
        ("val/a.7.jpg", 7),  # behind-a-dot
        ("val7/a.jpg", 0),  # in-the-folder
        ("val/7a.jpg", 0),  # not-at-the-end
        ("val/7", 0),  # no-extension
        ("val/٣.jpg", 0),  # other-digits
        ("1" * 30 + ".jpg", int("1" * 18)),  # far-too-long
    ]:
        assert label_names.number_of(key) == number


def test_rule_has_no_label_for_another_number() -> None:
    for name in ["x_0.JPEG", "x_4.JPEG", "x.JPEG"]:
        with pytest.raises(
            table_rows.BadRowError, match=r"ends in no number from 1 to 3, the lines of label\.lists"
        ) as raised:
            RULE.apply(ref(f"val/{name}"))
        assert raised.value.reason is Reason.NO_LABEL


def survey(num_images: int = 3, highest: int = 3, folder_labels: tuple[str, ...] = ("cat", "dog", "owl")) -> ListSurvey:
    use = ListUse(3, frozenset({"cat", "dog"}), num_images, highest)
    return ListSurvey({"val": use}, frozenset(folder_labels))


def test_lists_that_fit_are_no_problem() -> None:
    for found, has_vocabulary in [
        (label_names.NO_LISTS, False),  # no-lists
        (survey(), False),  # fits
        (survey(num_images=2), False),  # one-missing-in-between
        (survey(folder_labels=("owl",)), True),  # the-vocabulary-decides
        (survey(folder_labels=()), False),  # nothing-to-compare-with
    ]:
        assert found.find_error(has_vocabulary) is None


def test_lists_that_do_not_fit_are_a_problem() -> None:
    for found in [
        survey(num_images=0, highest=0),  # nothing
        survey(highest=4),  # too few lines
        survey(highest=2),  # too many
        survey(num_images=4),  # twice
        survey(folder_labels=("cat", "owl")),  # no folder
    ]:
        error_texts.check(found.find_error(has_vocabulary=False), "label-list-misfit")


def test_missing_images_are_noted() -> None:
    assert survey().notes == []
    assert survey(num_images=1).notes == ["of the 3 images that label.lists has labels for in 'val', 2 are not there"]


def test_survey_is_the_same_however_the_images_are_divided() -> None:
    refs = [ref(f"val/x_{number}.JPEG") for number in (1, 2, 3, 9)]
    refs += [ref(f"train/{name}/1.JPEG")._replace(label=name) for name in ("cat", "owl")]
    expected = ListSurvey({"val": ListUse(3, frozenset({"cat", "dog"}), 4, 9)}, frozenset({"cat", "owl"}))
    for start in range(len(refs)):
        surveyors = [label_names.ListSurveyor(LISTS) for _ in range(3)]
        for index, each in enumerate(refs[start:] + refs[:start]):
            surveyors[index % 3].add(each.key, each.label)
        assert _merge_all([surveyor.survey for surveyor in surveyors]) == expected


def test_rules_tell_how_the_lists_fit() -> None:
    keys = ["val/x_1.JPEG", "val/x_3.JPEG", "val/x_7.JPEG", "train/owl/1.JPEG"]
    listing = image_source.Listing(elements.UnpackedRefs([ref(key) for key in keys]), len(keys), (), {}, ())
    listed = reference_rules.ReferenceRules(label=RULE).apply(listing)
    assert listed.lists == ListSurvey({"val": ListUse(3, frozenset({"cat", "dog"}), 3, 7)}, frozenset({"owl"}))
    assert [reject.key for reject in listed.rejects] == [keys[2]]
    without = reference_rules.ReferenceRules(label=reference_rules.LabelRule("directory")).apply(listing)
    assert without.lists == label_names.NO_LISTS


def _merge_all(surveys: Iterable[ListSurvey]) -> ListSurvey:
    merged = label_names.NO_LISTS
    for each in surveys:
        merged = merged.merge(each)
    return merged
