# Images of imagebeam with the versions in requirements.lock. The command line, which is the default:
#
#   docker build -t imagebeam .
#   docker run --rm --user "$(id -u)" -v "$PWD:/data" imagebeam convert --config image_folder --input /data/images --output /data/out
#
# For Dataflow (docs/dataflow.md): the image of its workers, and the one that launches a Flex Template:
#
#   docker build -t REGION-docker.pkg.dev/PROJECT/imagebeam/worker:0.1.0-py3.11-beam2.77.0 --target worker .
#   docker build -t REGION-docker.pkg.dev/PROJECT/imagebeam/launcher:0.1.0 --target launcher .
#
# BASE may be any image with Python 3.10 to 3.13 and the venv module; the Python of workers and launcher must be the same.
ARG BASE=python:3.11-slim
# The program that starts a worker, of Beam's version in requirements.lock; and Google's that runs a Flex Template, in its
# newest version: it starts main.py with the Python and the Beam of this image. To pin it: --build-arg TEMPLATE_IMAGE=...
ARG BEAM_IMAGE=apache/beam_python3.11_sdk:2.77.0
ARG TEMPLATE_IMAGE=gcr.io/dataflow-templates-base/python311-template-launcher-base:latest

FROM ${BEAM_IMAGE} AS beam
FROM ${TEMPLATE_IMAGE} AS template

FROM ${BASE} AS system

ENV PATH=/opt/imagebeam/bin:$PATH \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1 \
    PYTHONUNBUFFERED=1

# For the code in C, if the base is Debian: gcc builds it; libjpeg-turbo and libpng are needed to build and to run it.
# hadolint ignore=DL3008
RUN if command -v apt-get > /dev/null; then \
      apt-get update --quiet \
      && apt-get install --quiet --yes --no-install-recommends gcc libc6-dev libjpeg-dev libpng-dev libturbojpeg0-dev \
      && rm -rf /var/lib/apt/lists/*; \
    fi

# The lock file is only a constraint here: pip installs what the extras need, in the locked versions.
WORKDIR /opt/src
COPY pyproject.toml requirements.lock setup.py ./
COPY imagebeam/__init__.py imagebeam/version.py imagebeam/
RUN python3 -m venv /opt/imagebeam \
    && pip install --quiet --constraint requirements.lock setuptools

FROM system AS worker

# The extras of setup.py to install, separated by commas. For columns that tf.Transform computes: convert,gcs,dataflow,transform
ARG WORKER_EXTRAS=convert,gcs,dataflow
RUN pip install --quiet --constraint requirements.lock --no-build-isolation ".[${WORKER_EXTRAS}]" \
    && pip uninstall --quiet --yes imagebeam

# The code comes last, so that a change of the code does not invalidate the layers above.
COPY . .
RUN pip install --quiet --no-deps --no-build-isolation .

# boot starts Beam's worker with the Python on PATH. Without the variable it would make an environment without imagebeam.
COPY --from=beam /opt/apache/beam /opt/apache/beam
ENV RUN_PYTHON_SDK_IN_DEFAULT_ENVIRONMENT=1
ENTRYPOINT ["/opt/apache/beam/boot"]

FROM worker AS launcher

COPY --from=template /opt/google/dataflow/python_template_launcher /opt/google/dataflow/python_template_launcher
COPY deploy/flex_template/main.py /opt/flex_template/main.py
ENV FLEX_TEMPLATE_PYTHON_PY_FILE=/opt/flex_template/main.py
ENTRYPOINT ["/opt/google/dataflow/python_template_launcher"]

FROM system

ARG EXTRAS=convert,tf,transform,gcs,hdfs,dataflow
RUN pip install --quiet --constraint requirements.lock --no-build-isolation ".[${EXTRAS}]" \
    && pip uninstall --quiet --yes imagebeam
COPY . .
RUN pip install --quiet --no-deps --no-build-isolation . \
    && useradd --create-home --uid 1000 imagebeam

USER 1000
WORKDIR /data
ENTRYPOINT ["imagebeam"]
