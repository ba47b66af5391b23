"""The options and credentials of gs://. tests/integration has an emulator for its operations."""

from __future__ import annotations

import json
import pathlib
import types
from typing import Any
from unittest import mock

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
from imagebeam.storage import ChangedError, gcs, given_options
from tests import case_tables, error_texts
from tests.servers import recorded_requests

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
    for options in ({}, {"token": "google_default"}, {"token": None}):
        client = client_of(**options)
        assert (client._credentials.token, client.project) == ("default", "default-project")


def test_client_is_made_once_and_again_after_a_fork() -> None:
    store = gcs.GcsStorage()
    client = store._connected()
    assert store._connected() is client
    store.rebuild()
    assert store._connected() is not client


def test_unknown_option_is_refused_with_the_known_ones() -> None:
    with error_texts.raises("storage-options-unknown"):
        gcs.GcsStorage({"token": "t", "anon": True})


def test_token_names_credentials_or_is_them_or_is_an_access_token() -> None:
    client = client_of(token="anon")
    assert isinstance(client._credentials, google.auth.credentials.AnonymousCredentials)
    assert client.project is None
    credentials = gcs.GcsStorage({"token": "cloud"})._credentials()  # a client would ask the machine for its domain
    assert isinstance(credentials, google.auth.compute_engine.Credentials)
    credentials = google.oauth2.credentials.Credentials("given")
    assert client_of(token=credentials)._credentials is credentials
    assert client_of(token="ya29.abc")._credentials.token == "ya29.abc"


def test_key_is_taken_as_a_dict_or_a_file(account: dict[str, str], tmp_path: pathlib.Path) -> None:
    path = tmp_path / "key.json"
    for with_type in ({}, {"type": "service_account"}):
        path.write_text(json.dumps({**account, **with_type}))
        for token in ({**account, **with_type}, str(path)):
            credentials = client_of(token=token, access="read_only")._credentials
            assert credentials.service_account_email == "a@b"
            assert credentials.scopes == ["https://www.googleapis.com/auth/devstorage.read_only"]
    for with_type in ({}, {"type": "authorized_user"}):
        assert client_of(token={**USER, **with_type})._credentials.refresh_token == "r"


def test_token_that_is_none_is_refused_with_what_it_may_be(tmp_path: pathlib.Path) -> None:
    for token in [{"client_id": "c"}, {"type": "service_account"}, {"type": "other"}, "file", 7, "browser", "cache"]:
        with case_tables.named(token):
            if token == "file":
                token = str(tmp_path / "key.json")
                pathlib.Path(token).write_text("no JSON")
            with error_texts.raises("gcs-bad-token"):
                client_of(token=token)


def test_project_endpoint_and_timeout_are_those_of_the_options() -> None:
    store = gcs.GcsStorage({"project": "p", "endpoint_url": "http://127.0.0.1:1", "requests_timeout": 7})
    client = store._connected()
    assert (client.project, client._connection.API_BASE_URL) == ("p", "http://127.0.0.1:1")
    assert store._once == {"retry": None, "timeout": (5.0, 7)}


def test_requester_pays_with_a_project() -> None:
    for options, payer in [
        ({}, None),
        ({"requester_pays": False}, None),
        ({"requester_pays": True}, "default-project"),
        ({"requester_pays": True, "project": "p"}, "p"),
        ({"requester_pays": "q", "project": "p"}, "q"),
    ]:
        assert gcs.GcsStorage(options)._blob("gs://b/n").user_project == payer
    with error_texts.raises("storage-cannot-open"):
        gcs.GcsStorage({"requester_pays": True, "token": "ya29.abc"}).stat("gs://b/n")


def test_every_request_has_the_payer_and_every_write_the_key() -> None:
    entry = {"name": "a", "bucket": "b", "size": "1", "generation": "7", "crc32c": "AAAAAA==", "items": []}
    entry |= {"totalBytesRewritten": "1", "objectSize": "1"}
    options = {"token": "anon", "project": "p", "requester_pays": True, "kms_key_name": "projects/p/key"}
    with recorded_requests.serve(lambda _: json.dumps({**entry, "done": True, "resource": entry}).encode()) as found:
        url, requests = found
        store = gcs.GcsStorage({**options, "endpoint_url": url})
        store.write_whole("gs://b/a", b"x")
        store.create_new("gs://b/a", b"x")
        store.rename("gs://b/a", "gs://b/c")
        list(store.list_directory("gs://b"))
        store.stat("gs://b/a")
        store.remove("gs://b/a")
    assert requests
    for each in requests:
        assert "userProject=p" in each.path, each
        is_write = each.path.startswith("/upload/")
        assert ("kmsKeyName=projects%2Fp%2Fkey" in each.path) == is_write, each
    assert ["KmsKeyName=projects%2Fp%2Fkey" in each.path for each in requests if "/rewriteTo/" in each.path] == [True]


def test_impersonated_account_is_asked_for_with_the_credentials_given() -> None:
    account = "writer@p.iam.gserviceaccount.com"
    sent: list[Any] = []

    def answer(url: str, method: str, body: bytes, headers: dict[str, str], **_: Any) -> Any:
        sent.append((url, json.loads(body)["scope"], headers["authorization"]))
        data = json.dumps({"accessToken": "theirs", "expireTime": "2099-01-01T00:00:00Z"}).encode()
        return types.SimpleNamespace(status=200, data=data)

    for options, own in [({}, "default"), ({"token": "ya29.abc"}, "ya29.abc")]:
        credentials = client_of(impersonate=account, access="read_write", **options)._credentials
        credentials.refresh(answer)
        assert credentials.token == "theirs"
        url, scope, authorization = sent.pop()
        assert url.endswith(f"/serviceAccounts/{account}:generateAccessToken")
        assert scope == ["https://www.googleapis.com/auth/devstorage.read_write"]
        assert authorization == f"Bearer {own}"


def test_impersonation_needs_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(google.auth, "default", mock.Mock(side_effect=auth_exceptions.DefaultCredentialsError("none")))
    with error_texts.raises("gcs-no-credentials"):
        client_of(impersonate="writer@p.iam.gserviceaccount.com")


def test_token_is_the_content_of_a_key_file_that_a_reference_names(
    account: dict[str, str], tmp_path: pathlib.Path
) -> None:
    (tmp_path / "key.json").write_text(json.dumps(account))
    options = given_options.resolve({"token": {"file": str(tmp_path / "key.json")}})
    assert client_of(**options)._credentials.service_account_email == "a@b"


# Without credentials


def test_bucket_that_is_not_public_is_refused_with_how_to_log_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(google.auth, "default", mock.Mock(side_effect=auth_exceptions.DefaultCredentialsError("none")))
    for error in [exceptions.Unauthorized("no"), exceptions.Forbidden("no")]:
        store = gcs.GcsStorage()
        assert isinstance(store._connected()._credentials, google.auth.credentials.AnonymousCredentials)
        error_texts.check(store.lasting_error(error, "gs://b/n"), "gcs-no-credentials")


def test_lasting_errors_of_the_client_are_distinguished_from_passing_ones() -> None:
    for token in (None, "anon"):
        store = gcs.GcsStorage({"token": token})
        store._connected()
        for error, expected in [
            (exceptions.Unauthorized("no"), PermissionError),
            (exceptions.Forbidden("no"), PermissionError),
            (exceptions.NotFound("x"), FileNotFoundError),
            (exceptions.PreconditionFailed("x"), FileExistsError),
            (exceptions.BadRequest("x"), OSError),
            (exceptions.TooManyRequests("x"), type(None)),
            (exceptions.ServiceUnavailable("x"), type(None)),
            (ConnectionError("x"), type(None)),
            (auth_exceptions.RefreshError("x", retryable=True), type(None)),
            (auth_exceptions.RefreshError("x", retryable=False), errors.ConfigError),
        ]:
            assert type(store.lasting_error(error, "gs://b/n")) is expected


# Moves


class FakeBucket:
    """A bucket with one object "old". Says `refusal` to moves, if any; `log` has the requests that were done."""

    def __init__(self, name: str, refusal: Exception | None = None) -> None:
        self.name, self.refusal = name, refusal
        self.objects = {"old"}
        self.log: list[tuple[Any, ...]] = []

    def blob(self, name: str, generation: int | None = None, kms_key_name: str | None = None) -> FakeBlob:
        return FakeBlob(self, name)

    def move_blob(self, blob: FakeBlob, name: str, **options: Any) -> None:
        conditions = options["if_generation_match"], options["if_source_generation_match"]
        self.log.append(("move", blob.name, name, *conditions))
        if self.refusal is not None:
            raise self.refusal
        if blob.name not in self.objects:
            raise exceptions.NotFound("No such object: b/old")
        self.objects = self.objects - {blob.name} | {name}


class FakeBlob:
    def __init__(self, bucket: FakeBucket, name: str) -> None:
        self.bucket, self.name = bucket, name

    def rewrite(self, origin: FakeBlob, token: str | None, **options: Any) -> tuple[None, int, int]:
        conditions = options["if_generation_match"], options["if_source_generation_match"]
        self.bucket.log.append(("copy", origin.name, self.name, *conditions))
        if origin.name not in origin.bucket.objects:
            raise exceptions.NotFound("No such object: b/old")
        self.bucket.objects.add(self.name)
        return None, 1, 1

    def delete(self, **options: Any) -> None:
        self.bucket.log.append(("delete", self.name, options["if_generation_match"]))
        self.bucket.objects.remove(self.name)


def store_of(monkeypatch: pytest.MonkeyPatch, *buckets: FakeBucket) -> gcs.GcsStorage:
    store = gcs.GcsStorage()
    monkeypatch.setattr(store, "_bucket", lambda name: next(each for each in buckets if each.name == name))
    return store


def test_move_within_a_bucket_is_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = FakeBucket("b")
    store = store_of(monkeypatch, bucket)
    store.rename("gs://b/old", "gs://b/a/new")
    store.rename("gs://b/a/new", "gs://b/newer", 7)
    assert bucket.log == [("move", "old", "a/new", None, None), ("move", "a/new", "newer", None, 7)]
    with pytest.raises(FileNotFoundError, match="there is no gs://b/old"):
        store.rename("gs://b/old", "gs://b/x")
    assert bucket.log[2:] == [("move", "old", "x", None, None)]  # known to move: no copy is tried
    assert bucket.objects == {"newer"}


@pytest.mark.parametrize(
    "refusal",
    [
        exceptions.BadRequest("only with a hierarchical namespace"),
        exceptions.NotFound("Not Found"),
        exceptions.MethodNotAllowed("no"),
        exceptions.MethodNotImplemented("no"),
    ],
)
def test_bucket_that_cannot_move_is_asked_once_then_copies(monkeypatch: pytest.MonkeyPatch, refusal: Exception) -> None:
    bucket, other = FakeBucket("b", refusal), FakeBucket("other")
    store = store_of(monkeypatch, bucket, other)
    store.rename("gs://b/old", "gs://b/new", 7)
    store.rename("gs://b/new", "gs://b/newer")
    assert bucket.log == [
        ("move", "old", "new", None, 7),
        *[("copy", "old", "new", None, 7), ("delete", "old", 7)],
        *[("copy", "new", "newer", None, None), ("delete", "new", None)],
    ]
    store.rename("gs://other/old", "gs://other/new")
    assert other.log == [("move", "old", "new", None, None)]
    store.rebuild()  # in a new process
    store.rename("gs://b/newer", "gs://b/newest")
    assert bucket.log[5][0] == "move"


def test_move_to_another_bucket_is_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = FakeBucket("b"), FakeBucket("c")
    store = store_of(monkeypatch, source, target)
    store.rename("gs://b/old", "gs://c/new")
    assert (source.log, target.log) == ([("delete", "old", None)], [("copy", "old", "new", None, None)])
    store.rename("gs://c/new", "gs://c/newer")
    assert target.log[1][0] == "move"


@pytest.mark.parametrize(
    ("refusal", "expected"),
    [(exceptions.PreconditionFailed("412"), ChangedError), (exceptions.Forbidden("403"), PermissionError)],
    ids=["412", "403"],
)
def test_move_that_is_not_allowed_is_not_tried_as_a_copy(
    monkeypatch: pytest.MonkeyPatch, refusal: Exception, expected: type[OSError]
) -> None:
    bucket = FakeBucket("b", refusal)
    with pytest.raises(expected):
        store_of(monkeypatch, bucket).rename("gs://b/old", "gs://b/new", 7)
    assert [request[0] for request in bucket.log] == ["move"]


# Checksums


def test_stored_checksum_is_that_of_the_object(monkeypatch: pytest.MonkeyPatch) -> None:
    store = gcs.GcsStorage()
    for kept, expected in [("4waSgw==", (9, 0xE3069283)), (None, None)]:
        blob = types.SimpleNamespace(size="9", crc32c=kept, reload=lambda **_: None)
        monkeypatch.setattr(store, "_blob", lambda uri, blob=blob: blob)
        assert store.stored_checksum("gs://b/n") == expected


def test_address_without_a_bucket_is_refused() -> None:
    with error_texts.raises("address-no-bucket"):
        gcs.GcsStorage().stat("gs://")
