"""A DAG that converts images each night on a worker of Airflow, and then verifies the dataset.

docs/schedulers.md says how to install it. It needs imagebeam_airflow.py in the plugins folder.
"""

from __future__ import annotations

import datetime

from airflow.sdk import DAG
from imagebeam_airflow import ImagebeamOperator

# --- set these -------------------------------------------------------------------------------------------------------
# Each text may hold templates of Airflow. As it is, one dataset gets a snapshot each night of whatever is in INPUT.
# For a dataset of its own for each date: end both addresses with /{{ ds }}, and leave out --update.
INPUT = "gs://YOUR-BUCKET/photos"
OUTPUT = "gs://YOUR-BUCKET/datasets/flowers"
OPTIONS = ["--config", "image_folder", "--update"]
PROGRAM = "imagebeam"  # a path, if it is not on the PATH of the worker
SCHEDULE = "30 2 * * *"
RETRIES = 8
RETRY_SEC = 300  # more than the 150 s after which a lock in a bucket expires whose run was killed
WRITES_SUMMARY = True
# ---------------------------------------------------------------------------------------------------------------------

with DAG(
    "imagebeam_nightly",
    schedule=SCHEDULE,
    start_date=datetime.datetime(2026, 1, 1),
    catchup=False,  # for a dataset of each date: True converts the dates that were missed
    max_active_runs=1,  # a second run at a time would end with exit code 5
    default_args={"retries": RETRIES, "retry_delay": datetime.timedelta(seconds=RETRY_SEC)},
    doc_md=__doc__,
):
    convert = ImagebeamOperator(
        task_id="convert",
        arguments=["convert", "--input", INPUT, "--output", OUTPUT, *OPTIONS],
        program=PROGRAM,
        summary=WRITES_SUMMARY,
    )
    verify = ImagebeamOperator(task_id="verify", arguments=["verify", OUTPUT], program=PROGRAM)
    convert >> verify
