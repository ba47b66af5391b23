"""Labels and splits from paths and lists, converted as a user has them."""

from __future__ import annotations

import pathlib

import pytest

from imagebeam import errors
from imagebeam.pipelines import convert, open_source
from imagebeam.pipelines.config import model as config_lib
from imagebeam.transforms import elements
from tests import datasets, table_sets


def labels_of(output: pathlib.Path, split: str) -> dict[str, str]:
    return {each["image/key"].decode(): each["image/class/text"].decode() for each in datasets.read(output, split)}


def test_ages_in_file_names_are_numbers(tmp_path: pathlib.Path) -> None:
    names = [f"{age}_{age % 2}_{age % 5}_2017010402310{age:02}.jpg.chip.jpg" for age in range(20, 40)]
    table_sets.put(tmp_path / "in", *names, "part2/61_1_20170109142408075.jpg.chip.jpg")
    result = table_sets.convert_preset(
        "utkface", tmp_path / "in", tmp_path / "out", "split={by: none}", "rejects.max_fraction=0.1"
    )
    found = {
        each["image/key"].decode(): (each["image/class/label"], each["gender"], each["race"])
        for each in datasets.read(tmp_path / "out")
    }
    assert found == {name: (age, age % 2, age % 5) for age, name in zip(range(20, 40), names)}
    assert result.catalog.counts.rejected == {"no_match": 1}


def test_pets_go_where_the_lists_say(tmp_path: pathlib.Path) -> None:
    pets = tmp_path / "pets"
    breeds = ["Abyssinian", "american_bulldog"]
    table_sets.put(
        pets, *(f"images/{breed}_{n}.jpg" for breed in breeds for n in range(1, 7)), "annotations/trimaps/x_1.png"
    )
    head = "#Image CLASS-ID SPECIES BREED ID\n"
    for name, numbers in {"trainval": range(1, 4), "test": range(4, 6)}.items():
        lines = [f"{breed}_{n} {index} 1 {index}\n" for index, breed in enumerate(breeds, 1) for n in numbers]
        (pets / f"annotations/{name}.txt").write_text(head + "".join(lines))
    with open(pets / "annotations/test.txt", "a") as file:
        file.write("Bengal_7 3 1 3\n")
    result = table_sets.convert_preset("oxford_pets", pets, tmp_path / "out")
    assert labels_of(tmp_path / "out", "train") == {f"images/{b}_{n}.jpg": b for b in breeds for n in (1, 2, 3)}
    assert labels_of(tmp_path / "out", "test") == {f"images/{b}_{n}.jpg": b for b in breeds for n in (4, 5)}
    assert result.plan.passed_over["not_in_lists"] == 2
    assert "split.lists names 5 images of test, and 4 were found" in result.plan.notes
    assert (result.catalog.counts.listed, result.catalog.counts.rejected) == (10, {})


def test_path_that_matches_nowhere_shows_the_first_paths(tmp_path: pathlib.Path) -> None:
    table_sets.put(tmp_path / "in", "a/1.jpg", "b/2.jpg")
    with pytest.raises(errors.TooManyRejectsError, match=r"no_match 2.*the first paths are 'a/1.jpg', 'b/2.jpg'"):
        datasets.make(tmp_path / "in", tmp_path / "out", source={"pattern": r"(?P<x>\d+)\.png"}, label={"by": "none"})


def test_lists_that_name_nothing_show_what_they_hold(tmp_path: pathlib.Path) -> None:
    table_sets.put(tmp_path / "in", "a/1.jpg", "b/2.jpg")
    (tmp_path / "in/train.txt").write_text("first\nsecond\n")
    with pytest.raises(errors.ConfigError, match=r"2 not_in_lists.*images are 'a/1.jpg', 'b/2.jpg', and .* is 'first'"):
        datasets.make(
            tmp_path / "in",
            tmp_path / "out",
            label={"by": "none"},
            split={"by": "lists", "lists": {"train": "train.txt"}},
        )


def test_split_is_the_name_of_the_table(tmp_path: pathlib.Path) -> None:
    table_sets.put(tmp_path / "in", "images/1.jpg", "images/2.jpg", "images/3.jpg")
    (tmp_path / "in/train.csv").write_text("id,label\n1,cat\n2,dog\n")
    (tmp_path / "in/valid.csv").write_text("id,label\n3,cat\n")
    overrides = ["source.manifest.path='*.csv'", "split={by: table, rename: {valid: validation}}"]
    table_sets.convert_preset("kaggle", tmp_path / "in", tmp_path / "out", *overrides)
    assert labels_of(tmp_path / "out", "train") == {"images/1.jpg": "cat", "images/2.jpg": "dog"}
    assert labels_of(tmp_path / "out", "validation") == {"images/3.jpg": "cat"}


def test_saved_listing_follows_the_same_rules(tmp_path: pathlib.Path) -> None:
    table_sets.put(tmp_path / "in", "a/1.jpg", "b/2.jpg", "b/3.jpg")
    (tmp_path / "in/train.txt").write_text("1\n2\n")
    sections = {
        "source": {"uri": str(tmp_path / "in"), "pattern": "(?P<label>[ab])/.*"},
        "label": {"by": "column", "column": "label"},
        "split": {"by": "lists", "lists": {"train": "train.txt"}},
        "output": {"uri": str(tmp_path / "out")},
    }
    config = config_lib.parse_config(sections, "a test")
    (tmp_path / "elsewhere").mkdir()
    listed = convert.save_listing(config, tmp_path / "elsewhere/listing.jsonl")
    found = [
        [
            (ref.key, ref.label, ref.split)
            for each in open_source.make_source(one).list_all()
            for ref in elements.unpack_refs(open_source.listing_rules_of(one).apply(each).packed_refs)
        ]
        for one in (config, listed)
    ]
    assert sorted(found[0]) == sorted(found[1]) == [("a/1.jpg", "a", "train"), ("b/2.jpg", "b", "train")]
    assert config.identity() == listed.identity() | {"source": {"pattern": config.source.pattern}}


def test_update_moves_an_image_whose_list_has_changed_and_says_so(tmp_path: pathlib.Path) -> None:
    table_sets.put(tmp_path / "in", "1.jpg", "2.jpg", "3.jpg", "4.jpg")
    sections = {
        "source": {"uri": str(tmp_path / "in")},
        "label": {"by": "none"},
        "split": {"by": "lists", "lists": {"train": "a.txt", "test": "b.txt"}},
        "output": {"uri": str(tmp_path / "out")},
    }
    (tmp_path / "in/a.txt").write_text("1\n2\n")
    (tmp_path / "in/b.txt").write_text("3\n4\n")
    convert.convert(sections, workers=1, update=True)
    (tmp_path / "in/a.txt").write_text("1\n")
    (tmp_path / "in/b.txt").write_text("2\n3\n4\n")
    result = convert.convert(sections, workers=1, update=True)
    assert {name: split.num_examples for name, split in result.catalog.splits.items()} == {"train": 1, "test": 3}
    assert [
        note for note in result.plan.notes if note.startswith("images that the last snapshot has in another split: 1")
    ]
