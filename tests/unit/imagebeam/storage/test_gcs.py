"""The options and credentials of gs://. tests/integration has an emulator for its operations."""

from __future__ import annotations

import json
import pathlib
import re
from typing import Any

import google.auth
import google.auth.compute_engine
import google.auth.credentials
import google.oauth2.credentials
import google.oauth2.service_account
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from google.api_core import exceptions
from google.auth import exceptions as auth_exceptions

from imagebeam import errors
from imagebeam.storage import gcs

USER = {"client_id": "c", "client_secret": "s", "refresh_token": "r"}


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No emulator, and default credentials of one user and project."""
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    credentials = google.oauth2.credentials.Credentials("default")
    monkeypatch.setattr(google.auth, "default", lambda *_, **__: (credentials, "default-project"))


@pytest.fixture(scope="module")
def account() -> dict[str, str]:
    """The key of a service account."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return {"client_email": "a@b", "private_key": key.decode(), "token_uri": "https://t"}


def client_of(**options: Any) -> Any:
    return gcs.GcsStorage(options)._connected()


def test_without_options_the_default_credentials_and_project_are_used() -> None:
    client = client_of()
    assert (client._credentials.token, client.project) == ("default", "default-project")
    assert client_of(token="google_default")._credentials.token == "default"
    assert client_of(token=None)._credentials.token == "default"


def test_client_is_made_once_and_again_after_a_fork() -> None:
    store = gcs.GcsStorage()
    client = store._connected()
    assert store._connected() is client
    store.rebuild()
    assert store._connected() is not client


def test_unknown_option_is_refused_with_the_known_ones() -> None:
    complaint = (
        "storage_options has 'anon', which gs:// does not know; "
        "it takes token, project, access, requester_pays, endpoint_url, requests_timeout"
    )
    with pytest.raises(errors.ConfigError, match=re.escape(complaint)):
        gcs.GcsStorage({"token": "t", "anon": True})


def test_token_anon_uses_no_credentials() -> None:
    client = client_of(token="anon")
    assert isinstance(client._credentials, google.auth.credentials.AnonymousCredentials)
    assert client.project is None


def test_token_cloud_is_the_account_of_the_machine() -> None:
    credentials = gcs.GcsStorage({"token": "cloud"})._credentials()  # a client would ask the machine for its domain
    assert isinstance(credentials, google.auth.compute_engine.Credentials)


def test_credentials_are_used_as_they_are() -> None:
    credentials = google.oauth2.credentials.Credentials("given")
    assert client_of(token=credentials)._credentials is credentials


def test_other_text_is_an_access_token() -> None:
    assert client_of(token="ya29.abc")._credentials.token == "ya29.abc"


@pytest.mark.parametrize("as_file", [False, True], ids=["dict", "file"])
@pytest.mark.parametrize("with_type", [False, True], ids=["plain", "with-type"])
@pytest.mark.parametrize("kind", ["service_account", "authorized_user"])
def test_key_is_taken_as_a_dict_or_a_file(
    kind: str, with_type: bool, as_file: bool, account: dict[str, str], tmp_path: pathlib.Path
) -> None:
    key = {**(account if kind == "service_account" else USER), **({"type": kind} if with_type else {})}
    (tmp_path / "key.json").write_text(json.dumps(key))
    credentials = client_of(token=str(tmp_path / "key.json") if as_file else key, access="read_only")._credentials
    if kind == "service_account":
        assert credentials.service_account_email == "a@b"
        assert credentials.scopes == ["https://www.googleapis.com/auth/devstorage.read_only"]
    else:
        assert credentials.refresh_token == "r"


@pytest.mark.parametrize(
    "token", [{"client_id": "c"}, {"type": "service_account"}, {"type": "other"}, "file", 7, "browser", "cache"]
)
def test_token_that_is_none_is_refused_with_what_it_may_be(token: Any, tmp_path: pathlib.Path) -> None:
    if token == "file":
        token = str(tmp_path / "key.json")
        pathlib.Path(token).write_text("no JSON")
    with pytest.raises(errors.ConfigError, match=r"storage_options\['token'\] .*; it takes None or 'google_default'"):
        client_of(token=token)


def test_project_endpoint_and_timeout_are_those_of_the_options() -> None:
    store = gcs.GcsStorage({"project": "p", "endpoint_url": "http://127.0.0.1:1", "requests_timeout": 7})
    client = store._connected()
    assert (client.project, client._connection.API_BASE_URL) == ("p", "http://127.0.0.1:1")
    assert store._once == {"retry": None, "timeout": (5.0, 7)}


@pytest.mark.parametrize(
    ("options", "payer"),
    [
        ({}, None),
        ({"requester_pays": False}, None),
        ({"requester_pays": True}, "default-project"),
        ({"requester_pays": True, "project": "p"}, "p"),
        ({"requester_pays": "q", "project": "p"}, "q"),
    ],
)
def test_requester_pays_with_a_project(options: dict[str, Any], payer: str | None) -> None:
    assert gcs.GcsStorage(options)._blob("gs://b/n").user_project == payer


# Without credentials


@pytest.fixture
def without_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise auth_exceptions.DefaultCredentialsError("none found")

    monkeypatch.setattr(google.auth, "default", refuse)


@pytest.mark.usefixtures("without_credentials")
@pytest.mark.parametrize("error", [exceptions.Unauthorized("no"), exceptions.Forbidden("no")], ids=["401", "403"])
def test_bucket_that_is_not_public_is_refused_with_how_to_log_in(error: Exception) -> None:
    store = gcs.GcsStorage()
    assert isinstance(store._connected()._credentials, google.auth.credentials.AnonymousCredentials)
    lasting = store.lasting_error(error, "gs://b/n")
    assert isinstance(lasting, errors.ConfigError)
    assert str(lasting) == (
        "gs://b/n: no credentials for Google Cloud: gcloud auth application-default login, or set "
        "GOOGLE_APPLICATION_CREDENTIALS"
    )


@pytest.mark.parametrize("error", [exceptions.Unauthorized("no"), exceptions.Forbidden("no")], ids=["401", "403"])
@pytest.mark.parametrize("token", [None, "anon"])
def test_access_that_is_denied_to_known_credentials_is_an_error_of_permission(error: Exception, token: Any) -> None:
    store = gcs.GcsStorage({"token": token})
    store._connected()
    assert isinstance(store.lasting_error(error, "gs://b/n"), PermissionError)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (exceptions.NotFound("x"), FileNotFoundError),
        (exceptions.PreconditionFailed("x"), FileExistsError),
        (exceptions.BadRequest("x"), OSError),
        (exceptions.TooManyRequests("x"), type(None)),
        (exceptions.ServiceUnavailable("x"), type(None)),
        (ConnectionError("x"), type(None)),
        (auth_exceptions.RefreshError("x", retryable=True), type(None)),
        (auth_exceptions.RefreshError("x", retryable=False), errors.ConfigError),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else value.__name__,
)
def test_lasting_errors_of_the_client_are_distinguished_from_passing_ones(error: Exception, expected: type) -> None:
    assert type(gcs.GcsStorage().lasting_error(error, "gs://b/n")) is expected


def test_address_without_a_bucket_is_refused() -> None:
    with pytest.raises(errors.ConfigError, match=r"address 'gs://' names no bucket: write gs://BUCKET/FOLDER"):
        gcs.GcsStorage().stat("gs://")
