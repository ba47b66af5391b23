"""hdfs:// addresses, and the private call of fsspec that WebHdfsStorage relies on. tests/integration has a cluster."""

from __future__ import annotations

import pytest
import requests

from imagebeam.storage import webhdfs
from tests import case_tables, error_texts


def test_address_is_parsed() -> None:
    for uri, expected in [
        ("hdfs://me@host:9870/a/b", ("host", 9870, "me", "/a/b")),
        ("hdfs://you%40corp@10.0.0.1:1/", ("10.0.0.1", 1, "you@corp", "/")),
        ("hdfs://host:9870", ("host", 9870, None, "/")),
        ("webhdfs://[::1]:9870/a:b", ("[::1]", 9870, None, "/a:b")),
    ]:
        assert webhdfs.parse_hdfs(uri) == expected


def test_address_without_a_port_is_refused() -> None:
    for uri in ["hdfs:///a", "hdfs://folder/file", "hdfs://host:x/a", "hdfs://:9870/a"]:
        with case_tables.named(uri), error_texts.raises("address-no-namenode"):
            webhdfs.parse_hdfs(uri)


def test_user_is_that_of_the_address_the_options_or_the_login_name(monkeypatch: pytest.MonkeyPatch) -> None:
    for uri, options, expected in [
        ("hdfs://me@host:1/a", {}, {"user.name": "me"}),
        ("hdfs://me@host:1/a", {"user": "you"}, {"user.name": "me"}),
        ("hdfs://host:1/a", {}, {"user.name": "login"}),
        ("hdfs://host:1/a", {"user": "you"}, {"user.name": "you"}),
        ("hdfs://host:1/a", {"token": "t"}, {"delegation": "t"}),
        ("hdfs://host:1/a", {"proxy_to": "you"}, {"user.name": "login", "doas": "you"}),
    ]:
        monkeypatch.setenv("HADOOP_USER_NAME", "login")
        store = webhdfs.WebHdfsStorage(options)
        assert store.filesystem(uri).pars == expected
        assert store.filesystem(uri) is store.filesystem(uri)
    for name in ("one", "other"):  # follows a login name that changes
        monkeypatch.setenv("HADOOP_USER_NAME", name)
        assert store.filesystem("hdfs://host:1/a").pars == {"user.name": name, "doas": "you"}


def test_options_that_exclude_each_other_are_refused() -> None:
    store = webhdfs.WebHdfsStorage({"token": "t", "proxy_to": "you"})
    with error_texts.raises("storage-cannot-open"):
        store.filesystem("hdfs://host:1/a")


# fsspec's private _call


def test_private_call_of_fsspec_raises_the_errors_that_are_distinguished(monkeypatch: pytest.MonkeyPatch) -> None:
    store = webhdfs.WebHdfsStorage()
    session = store.filesystem("hdfs://me@host:1/a").session
    for exception, expected in [
        ("FileNotFoundException", FileNotFoundError),
        ("AccessControlException", PermissionError),
        ("IllegalArgumentException", ValueError),
        ("FileAlreadyExistsException", RuntimeError),
    ]:
        answer = requests.Response()
        answer.status_code = 403
        answer._content = b'{"RemoteException": {"exception": "%s", "message": "the text"}}' % exception.encode()
        monkeypatch.setattr(session, "request", lambda answer=answer, **_: answer)
        with pytest.raises(expected, match="the text"):
            store._call("hdfs://me@host:1/a", "MKDIRS", "put")
