"""Options of storages that hold for addresses in a process, and references to secrets."""

from __future__ import annotations

import concurrent.futures
import pathlib
import pickle

import pytest

from imagebeam import storage
from imagebeam.storage import given_options
from tests import case_tables, error_texts


@pytest.fixture(autouse=True)
def no_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has no table, in which the tests leave none."""
    monkeypatch.setattr(given_options, "_tables", [])


def test_address_has_the_options_of_the_longest_one_above_it() -> None:
    table = {"s3://": {"of": "scheme"}, "s3://a": {"of": "bucket"}, "s3://a/b": {"of": "folder"}, "": {"of": "rest"}}
    with storage.using(table):
        for uri, of in [
            ("s3://a/b/c", "folder"),
            ("s3://a/b", "folder"),
            ("s3://a/bc", "bucket"),
            ("s3://a", "bucket"),
            ("s3://ab", "scheme"),
            ("gs://a/b", "rest"),
            ("https://a/b", None),  # of source.web
            ("/a/b", None),
        ]:
            assert given_options.options_of(uri).get("of") == of, uri
    assert given_options.options_of("s3://a") == {}


def test_storage_of_an_address_is_opened_with_the_options_in_use() -> None:
    with storage.using({"gs://a": {"token": "anon"}}):
        inside = storage.storage_of("gs://a/x")
        assert inside is storage.storage_of("gs://b", {"token": "anon"})
        assert inside is not storage.storage_of("gs://b")
        assert storage.storage_of("gs://a", {"project": "p"}) is storage.storage_of(
            "gs://b", {"token": "anon", "project": "p"}
        )
    assert storage.storage_of("gs://a/x") is storage.storage_of("gs://b")


def test_block_within_another_wins_and_that_of_another_thread_is_refused() -> None:
    def other_thread() -> None:
        with storage.using({"gs://a": {"project": "q"}}):
            pass

    with storage.using({"gs://a": {"project": "p"}}):
        with storage.using({"gs://a": {"project": "r"}}):
            assert given_options.options_of("gs://a") == {"project": "r"}
        assert given_options.options_of("gs://a") == {"project": "p"}
        with concurrent.futures.ThreadPoolExecutor(1) as pool, error_texts.raises("storage-options-differ"):
            pool.submit(other_thread).result()


def test_table_comes_to_a_process_with_what_is_unpickled_there() -> None:
    table = {"gs://a": {"token": {"env": "TOKEN"}}}
    pickled = pickle.dumps(given_options.Carried(table))
    assert given_options.active() == {}
    for _ in range(2):
        assert pickle.loads(pickled).table == table
    assert given_options.active() == table
    assert len(given_options._tables) == 1
    with storage.using({"gs://b": {}}):
        assert pickle.loads(pickle.dumps(given_options.Carried(given_options.active()))).table == {
            **table,
            "gs://b": {},
        }
        assert len(given_options._tables) == 2


def test_references_are_what_they_name_in_this_process(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret").write_text("of file\r\n")
    monkeypatch.setenv("A_SECRET", "of variable\n")
    reference = {"file": f"{tmp_path}/secret"}
    options = {"key": {"env": "A_SECRET"}, "inner": {"secret": reference, "verify": False}, "auth": ["me", reference]}
    for each in (options, {"auth": ["me", reference]}):
        assert given_options.has_references(each)
    resolved = {"key": "of variable", "inner": {"secret": "of file", "verify": False}, "auth": ["me", "of file"]}
    assert given_options.resolve(options) == resolved
    (tmp_path / "secret").write_bytes(b"\xff")
    (tmp_path / "empty").write_text(" \n")
    monkeypatch.setenv("EMPTY", "\n")
    for missing in (
        {"env": "NOT_SET"},
        {"env": "EMPTY"},
        *({"file": str(tmp_path / name)} for name in ("nothing", "secret", "empty")),
    ):
        with case_tables.named(missing), error_texts.raises("storage-secret-missing"):
            storage.storage_of("gs://a", {"token": missing})


def test_reference_is_read_again_by_the_next_block(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for value in ("one", "two"):
        monkeypatch.setenv("A_TOKEN", value)
        with storage.using({"gs://a": {"token": {"env": "A_TOKEN"}}}):
            found.append(storage.storage_of("gs://a"))
            assert storage.storage_of("gs://a") is found[-1]
    assert found[0] is not found[1]


def test_secret_is_found_by_its_name() -> None:
    reference = {"env": "X"}
    for options, found in [
        ({"key": "k"}, "key"),
        ({"secret": "s"}, "secret"),
        ({"token": "ya29.abc"}, "token"),
        ({"token": {"type": "service_account", "private_key": "x"}}, "token"),
        ({"account_key": "x"}, "account_key"),
        ({"connection_string": "x"}, "connection_string"),
        ({"sas_token": "x"}, "sas_token"),
        ({"password": "x"}, "password"),
        ({"client_kwargs": {"aws_secret_access_key": "x"}}, "client_kwargs.aws_secret_access_key"),
        ({"s3_additional_kwargs": {"SSECustomerKey": "x"}}, "s3_additional_kwargs.SSECustomerKey"),
        ({"headers": {"Authorization": "x"}}, "headers.Authorization"),
        ({"endpoint_url": "https://me:pass@host"}, "endpoint_url"),
        ({"client_kwargs": {"headers": {"X-Api-Key": "x"}}}, "client_kwargs.headers.X-Api-Key"),
        ({"auth": ["me", "p"]}, "auth"),
        ({"cookies": {"a": "x"}}, "cookies"),
        ({"inner": [{"anon": True}, {"password": 1234}]}, "inner[1].password"),
        ({"headers": ["Accept: */*", "Authorization: Bearer x"]}, "headers[1]"),
        ({"headers": ["X-Api-Key: x"]}, "headers[0]"),
        ({"urls": ["https://host", "https://me:pass@host"]}, "urls[1]"),
        ({"proxies": {"https": "http://:pass@proxy"}}, "proxies.https"),
        ({"endpoint_url": "https://h/?sv=1&sig=abc"}, "endpoint_url"),
        ({"endpoint_url": "https://h/?X-Amz-Signature=abc"}, "endpoint_url"),
        ({"endpoint_url": "https://h/?access_token=abc"}, "endpoint_url"),
        ({"account": "AccountName=a;AccountKey=abcdef"}, "account"),
        ({"key_file": "-----BEGIN RSA PRIVATE KEY-----"}, "key_file"),
        ({"token": "/9j/4AAQSkZJRgABAQ=="}, "token"),
        ({"key": {"env": "A", "x": 1}}, "key"),
        *(
            ({name: "x"}, name)
            for name in ("passphrase", "pwd", "apikey", "sas", "conn_str", "tokens", "bearer", "jwt", "secret_name")
        ),
        *(({name: "x"}, name) for name in ("accessToken", "connectionString", "AWSAccessKeyId", "privateKeyData")),
        ({"key": reference, "secret": {"file": "/x"}, "client_kwargs": {"aws_session_token": reference}}, None),
        ({"token": "anon"}, None),
        ({"token": "/keys/account.json"}, None),
        ({"anon": True, "profile": "p", "endpoint_url": "https://host:9000", "account_name": "a"}, None),
        ({"kms_key_name": "projects/p/keyRings/r/cryptoKeys/k", "requester_pays": True}, None),
        ({"keytab": "/etc/me.keytab", "token_file": "/run/token", "kerb_kwargs": {"principal": "me@REALM"}}, None),
        ({"session_cert": ["/a.pem", "/key.pem"], "data_proxy": {"dn1:9864": "localhost:1"}, "user": "me"}, None),
        ({"client_kwargs": {"region_name": "r"}, "config_kwargs": {"signature_version": "s3v4"}}, None),
        ({"s3_additional_kwargs": {"SSEKMSKeyId": "arn:aws:kms:r:1:key/k", "BucketKeyEnabled": True}}, None),
        ({"impersonate": "me@p.iam.gserviceaccount.com", "project": "p", "access": "read_only"}, None),
        ({"auth": [reference, reference], "cookies": {"a": reference}, "token": None, "key_filename": "/k"}, None),
        ({"endpoint_url": "https://host:9000/?sv=2024-01-01&se=1", "tenant_id": "t", "client_id": "c"}, None),
    ]:
        expected = None if found is None else f"options.{found}"
        assert given_options.find_secret(options, "options") == expected, options
