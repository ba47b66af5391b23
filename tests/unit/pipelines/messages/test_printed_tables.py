"""Tables that commands print."""

from __future__ import annotations

from typing import Any

from imagebeam.pipelines.messages import printed_tables

# --- what a snapshot changed -----------------------------------------------------------------------------------------


REPORT: dict[str, Any] = {
    "snapshot": "000003",
    "base": "000002",
    "compacted": None,
    "splits": {"train": {"added": 1200, "changed": 2, "removed": 1, "unchanged": 30, "examples": 1232}},
    "labels": {
        "train": {
            "cat": {"written": 1202, "removed": 2, "unchanged": 20},
            "dog": {"written": 0, "removed": 1, "unchanged": 10},
            "ant": {"written": 0, "removed": 0, "unchanged": 1},
        }
    },
    "written": {"train": {"shards": 2, "records": 1202, "bytes": 1_500_000}},
    "rejects": {"corrupt": {"new": 2, "kept": 5, "gone": 0}, "no_label": {"new": 1, "kept": 0, "gone": 3}},
    "drift": {
        "labels": {"train": {"difference": 0.3, "by_chance": 0.1, "threshold": 0.1, "exceeds": True, "moved": []}},
        "sizes": {"bytes": {"difference": -0.25, "by_chance": None, "threshold": 0.5, "exceeds": False}},
        "rejects": {
            "all": {"difference": 0.01, "by_chance": 0.02, "threshold": None, "exceeds": False},
            "corrupt": {"difference": 0.01, "by_chance": 0.02, "threshold": None, "exceeds": False},
        },
    },
}


def test_rows_show_changes_by_split_and_label_and_mark_what_is_too_far() -> None:
    assert printed_tables.report_rows(REPORT) == [
        ("changes", "snapshot 000003 since 000002"),
        ("  train", "1,200 added, 2 changed, 1 removed, 30 unchanged"),
        ("  train labels", "cat +1,202 -2, dog -1"),
        ("  written", "2 shards, 1.5 MB"),
        ("  rejects", "3 new (corrupt 2, no_label 1), 5 kept (corrupt 5), 3 gone since (no_label 3)"),
        ("  drift of labels", "train 0.300 (0.100 by chance, MORE THAN 0.1)"),
        ("  drift of sizes", "bytes -25.0% (too few images to compare)"),
        ("  drift of rejects", "all +0.010 (0.020 by chance)"),
    ]


def test_drift_of_several_figures_has_the_unit_of_the_difference_and_no_note_twice() -> None:
    def sizes(*by_chance: float | None) -> str:
        figure = {"difference": -0.064, "threshold": 0.5, "exceeds": False}
        found = {name: figure | {"by_chance": each} for name, each in zip(("bytes", "height"), by_chance)}
        return dict(printed_tables.report_rows(REPORT | {"drift": {"sizes": found}}))["  drift of sizes"]

    assert sizes(0.583, 0.555) == "bytes -6.4% (58.3% by chance); height -6.4% (55.5% by chance)"
    assert sizes(None, None) == "bytes -6.4%, height -6.4% (too few images to compare)"


def test_rows_of_a_first_or_compacted_snapshot_have_no_drift() -> None:
    first = REPORT | {"base": None, "drift": None, "rejects": {}}
    assert [name for name, _ in printed_tables.report_rows(first)] == ["changes", "  train", "  written"]
    compacted = printed_tables.report_rows(first | {"compacted": "000002"})
    assert compacted[0] == ("changes", "snapshot 000003, compacted from 000002")
    assert printed_tables.report_rows({}) == []


def test_rows_name_five_labels_and_say_where_the_rejects_are_not_known() -> None:
    labels = {f"{n}": {"written": n, "removed": 0, "unchanged": 0} for n in range(8)}
    rows = dict(printed_tables.report_rows(REPORT | {"labels": {"train": labels}, "rejects": None}))
    assert rows["  train labels"] == "7 +7, 6 +6, 5 +5, 4 +4, 3 +3 and 2 more"
    assert rows["  rejects"].startswith("those of the snapshot before are lost")
