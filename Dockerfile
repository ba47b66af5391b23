# imagebeam with the versions of requirements.lock:
#
#   docker build -t imagebeam .
#   docker run --rm --user "$(id -u)" -v "$PWD:/data" imagebeam convert --config image_folder --input /data/images --output /data/out
#
# The base is any image with Python 3.10 to 3.13 and its venv module.
ARG BASE=python:3.11-slim
FROM ${BASE}

# The extras of setup.py to install, separated by commas. For a Dataflow worker that only converts:
# EXTRAS=convert,gcs,dataflow
ARG EXTRAS=convert,tf,transform,gcs,hdfs,dataflow

ENV PATH=/opt/imagebeam/bin:$PATH \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1 \
    PYTHONUNBUFFERED=1

# The lock is a constraint here: only what the extras ask for is installed, each in its locked version.
WORKDIR /opt/src
COPY pyproject.toml requirements.lock setup.py ./
COPY imagebeam/__init__.py imagebeam/
RUN python3 -m venv /opt/imagebeam \
    && pip install --quiet --constraint requirements.lock setuptools \
    && pip install --quiet --constraint requirements.lock --no-build-isolation ".[${EXTRAS}]" \
    && pip uninstall --quiet --yes imagebeam

# The reader's decoder, where the base is Debian's: gcc to build it, libjpeg-turbo to build and run it.
RUN if command -v apt-get > /dev/null; then \
      apt-get update --quiet \
      && apt-get install --quiet --yes --no-install-recommends gcc libc6-dev libjpeg-dev \
      && rm -rf /var/lib/apt/lists/*; \
    fi

# The code comes last, so that a change of it leaves the layer above as it is.
COPY . .
RUN pip install --quiet --no-deps --no-build-isolation . \
    && useradd --create-home --uid 1000 imagebeam

USER 1000
WORKDIR /data
ENTRYPOINT ["imagebeam"]
