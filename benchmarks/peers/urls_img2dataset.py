"""Downloads a list of addresses with img2dataset as they are, in 2 processes of 32 threads each, into tars."""

from __future__ import annotations

import json
import pathlib
import sys

import img2dataset


def main(urls: str, expected: str, timeout: str, folder: str) -> None:
    output = pathlib.Path(folder)
    img2dataset.download(
        url_list=urls,
        output_folder=str(output / "dataset"),
        encode_format="jpg",
        resize_mode="no",
        skip_reencode=True,
        output_format="webdataset",
        processes_count=2,
        thread_count=32,
        number_sample_per_shard=1000,
        timeout=int(timeout),
        retries=1,  # of what fails: imagebeam asks for several seconds
        compute_hash=None,
        extract_exif=False,
    )
    stats = [json.loads(path.read_text()) for path in (output / "dataset").glob("*_stats.json")]
    if (written := sum(each["successes"] for each in stats)) != int(expected):
        raise SystemExit(f"img2dataset wrote {written:,} images, expected {int(expected):,}")


if __name__ == "__main__":
    main(*sys.argv[1:])
