"""Errors for packages that are not installed."""

from __future__ import annotations

import runpy

import pytest
import setuptools

from imagebeam import errors
from tests import command_line


@pytest.mark.parametrize(
    ("module", "package", "extra"),
    [
        ("tensorflow", "tensorflow", "tf"),
        ("numpy", "numpy", "tf"),
        ("jax.numpy", "jax", "tf,jax"),
        ("grain", "grain", "grain"),
        ("google.cloud.storage", "google.cloud.storage", "gcs"),
        ("requests.adapters", "requests", "hdfs"),
        ("fsspec", "fsspec", "hdfs"),
        ("apache_beam.options.pipeline_options", "apache_beam", "convert"),
        ("pydantic", "pydantic", "convert"),
        ("PIL.Image", "Pillow", "convert"),
    ],
)
def test_extra_is_chosen_by_the_package(module: str, package: str, extra: str) -> None:
    found = errors.missing_package(ModuleNotFoundError(name=module), "as_x")
    assert isinstance(found, errors.ConfigError)
    assert str(found) == f"{package} is not installed, as_x needs it: pip install 'imagebeam[{extra}]'"


def test_user_of_a_package_may_choose_the_extra_and_offer_an_alternative() -> None:
    found = errors.missing_package(ModuleNotFoundError(name="PIL"), "as_x", "grain", "give decode=False")
    assert str(found) == (
        "Pillow is not installed, as_x needs it: pip install 'imagebeam[grain]', or give decode=False"
    )


def test_every_extra_that_is_named_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setuptools, "setup", lambda **_: None)
    extras = runpy.run_path(str(command_line.ROOT / "setup.py"))["EXTRAS"]
    requirements = [each for each in errors._BY_SCHEME.values() if "imagebeam" in each]
    in_schemes = [each.removeprefix("'imagebeam[").removesuffix("]'") for each in requirements]
    named = {name for each in (*errors._EXTRAS.values(), *in_schemes) for name in each.split(",")}
    assert len(named) == 6
    assert named < set(extras)
