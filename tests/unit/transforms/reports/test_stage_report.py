from __future__ import annotations

from imagebeam.transforms.reports import stage_report
from imagebeam.transforms.shard import writer_processes

NEEDED = ("PIL.JpegImagePlugin", "imagebeam.transforms.html_report.make_report")


def test_writer_process_that_is_prepared_has_imported_what_a_page_needs() -> None:
    with writer_processes.start(1) as pool:
        assert pool.submit(stage_report.prepare, None).result() is None
        imported = pool.submit(eval, f"[name for name in {NEEDED} if name in __import__('sys').modules]").result()
    assert tuple(imported) == NEEDED
