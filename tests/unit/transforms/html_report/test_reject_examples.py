from __future__ import annotations

import json
import pathlib

import pytest

from imagebeam.transforms.html_report import sample_records


def lines(*rejects: tuple[str, str]) -> str:
    return "".join(
        json.dumps({"key": key, "uri": f"/in/{key}", "stage": "read", "reason": reason, "detail": "d"}) + "\n"
        for key, reason in rejects
    )


def test_three_of_each_reason_are_found(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "rejects.jsonl"
    many = [(f"{number}\udcff", "truncated") for number in range(9)]
    path.write_text(lines(*many, ("x", "corrupt")) + "not json\n[]\n" + '{"reason": "corrupt"}\n')
    found = sample_records.find_reject_examples(str(path))
    assert {reason: [each.key for each in examples] for reason, examples in found.items()} == {
        "corrupt": ["x"],
        "truncated": ["0\udcff", "1\udcff", "2\udcff"],
    }


def test_long_file_is_read_in_a_few_windows(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rejects.jsonl"
    path.write_text(lines(*((f"{n}", "truncated") for n in range(500)), *((f"{n}", "corrupt") for n in range(500))))
    monkeypatch.setattr(sample_records, "_WINDOW_BYTES", 500)
    found = sample_records.find_reject_examples(str(path))
    assert {reason: len(examples) for reason, examples in found.items()} == {"corrupt": 3, "truncated": 3}
    assert all(each.uri == f"/in/{each.key}" for examples in found.values() for each in examples)


def test_missing_file_has_no_rejects(tmp_path: pathlib.Path) -> None:
    assert sample_records.find_reject_examples(str(tmp_path / "none")) == {}
