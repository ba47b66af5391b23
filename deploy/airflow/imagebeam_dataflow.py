"""A DAG that converts images each night on Dataflow. While the job runs, it takes no worker's slot of Airflow.

docs/schedulers.md says how to install it. It needs imagebeam_airflow.py in the plugins folder, and a triggerer.
"""

from __future__ import annotations

import datetime

from airflow.sdk import DAG
from imagebeam_airflow import ImagebeamDataflowOperator

# --- set these -------------------------------------------------------------------------------------------------------
# Each text may hold templates of Airflow. As it is, one dataset gets a snapshot each night of whatever is in INPUT.
# For a dataset of its own for each date: end both addresses with /{{ ds }}, and leave out --update.
INPUT = "gs://YOUR-BUCKET/photos"
OUTPUT = "gs://YOUR-BUCKET/datasets/flowers"
OPTIONS = ["--config", "image_folder", "--update"]
DATAFLOW = [
    "--runner=DataflowRunner",
    "--project=YOUR-PROJECT",
    "--region=europe-west4",
    "--temp_location=gs://YOUR-BUCKET/tmp",
    "--sdk_container_image=europe-docker.pkg.dev/YOUR-PROJECT/imagebeam/worker:0.1.0-py3.11-beam2.77.0",
    "--service_account_email=imagebeam@YOUR-PROJECT.iam.gserviceaccount.com",
]
PROGRAM = "imagebeam"  # a path, if it is not on the PATH of the worker and the triggerer
SCHEDULE = "30 2 * * *"
RETRIES = 3
RETRY_SEC = 300
POLL_SEC = 60
WRITES_SUMMARY = True
# ---------------------------------------------------------------------------------------------------------------------

with DAG(
    "imagebeam_dataflow",
    schedule=SCHEDULE,
    start_date=datetime.datetime(2026, 1, 1),
    catchup=False,  # for a dataset of each date: True converts the dates that were missed
    max_active_runs=1,  # a second run at a time would end with exit code 5
    default_args={"retries": RETRIES, "retry_delay": datetime.timedelta(seconds=RETRY_SEC)},
    doc_md=__doc__,
):
    ImagebeamDataflowOperator(
        task_id="convert",
        arguments=["convert", "--input", INPUT, *OPTIONS, *DATAFLOW],
        output_uri=OUTPUT,
        program=PROGRAM,
        poll_sec=POLL_SEC,
        summary=WRITES_SUMMARY,
    )
