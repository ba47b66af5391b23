# Builds an image of imagebeam with the versions in requirements.lock:
#
#   docker build -t imagebeam .
#   docker run --rm --user "$(id -u)" -v "$PWD:/data" imagebeam convert --config image_folder --input /data/images --output /data/out
#
# BASE may be any image with Python 3.10 to 3.13 and the venv module.
ARG BASE=python:3.11-slim
FROM ${BASE}

# The extras of setup.py to install, separated by commas. For a Dataflow worker that only converts:
# EXTRAS=convert,gcs,dataflow
ARG EXTRAS=convert,tf,transform,gcs,hdfs,dataflow

ENV PATH=/opt/imagebeam/bin:$PATH \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1 \
    PYTHONUNBUFFERED=1

# The lock file is only a constraint here: pip installs what the extras need, in the locked versions.
WORKDIR /opt/src
COPY pyproject.toml requirements.lock setup.py ./
COPY imagebeam/__init__.py imagebeam/version.py imagebeam/
RUN python3 -m venv /opt/imagebeam \
    && pip install --quiet --constraint requirements.lock setuptools \
    && pip install --quiet --constraint requirements.lock --no-build-isolation ".[${EXTRAS}]" \
    && pip uninstall --quiet --yes imagebeam

# For the reader's decoder in C, if the base is Debian: gcc builds it; libjpeg-turbo is needed to build and to run it.
RUN if command -v apt-get > /dev/null; then \
      apt-get update --quiet \
      && apt-get install --quiet --yes --no-install-recommends gcc libc6-dev libjpeg-dev \
      && rm -rf /var/lib/apt/lists/*; \
    fi

# The code comes last, so that a change of the code does not invalidate the layers above.
COPY . .
RUN pip install --quiet --no-deps --no-build-isolation . \
    && useradd --create-home --uid 1000 imagebeam

USER 1000
WORKDIR /data
ENTRYPOINT ["imagebeam"]
