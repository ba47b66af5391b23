"""hdfs:// addresses, and the private call of fsspec that WebHdfsStorage relies on. tests/integration has a cluster."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import requests
from fsspec.implementations import webhdfs as fsspec_webhdfs

from imagebeam import errors
from imagebeam.storage import webhdfs


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("hdfs://me@host:9870/a/b", ("host", 9870, "me", "/a/b")),
        ("hdfs://you%40corp@10.0.0.1:1/", ("10.0.0.1", 1, "you@corp", "/")),
        ("hdfs://host:9870", ("host", 9870, None, "/")),
        ("webhdfs://[::1]:9870/a:b", ("[::1]", 9870, None, "/a:b")),
    ],
)
def test_address_is_parsed(uri: str, expected: tuple[str, int, str | None, str]) -> None:
    assert webhdfs.parse_hdfs(uri) == expected


@pytest.mark.parametrize("uri", ["hdfs:///a", "hdfs://folder/file", "hdfs://host:x/a", "hdfs://:9870/a"])
def test_address_without_a_port_is_refused(uri: str) -> None:
    with pytest.raises(errors.ConfigError, match=r"write hdfs://NAMENODE:9870/FOLDER"):
        webhdfs.parse_hdfs(uri)


@pytest.mark.parametrize(
    ("uri", "options", "expected"),
    [
        ("hdfs://me@host:1/a", {}, {"user.name": "me"}),
        ("hdfs://me@host:1/a", {"user": "you"}, {"user.name": "me"}),
        ("hdfs://host:1/a", {}, {"user.name": "login"}),
        ("hdfs://host:1/a", {"user": "you"}, {"user.name": "you"}),
        ("hdfs://host:1/a", {"token": "t"}, {"delegation": "t"}),
        ("hdfs://host:1/a", {"proxy_to": "you"}, {"user.name": "login", "doas": "you"}),
    ],
)
def test_user_is_that_of_the_address_the_options_or_the_login_name(
    uri: str, options: dict[str, Any], expected: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HADOOP_USER_NAME", "login")
    store = webhdfs.WebHdfsStorage(options)
    assert store.filesystem(uri).pars == expected
    assert store.filesystem(uri) is store.filesystem(uri)


def test_user_follows_a_login_name_that_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    store = webhdfs.WebHdfsStorage()
    for name in ("one", "other"):
        monkeypatch.setenv("HADOOP_USER_NAME", name)
        assert store.filesystem("hdfs://host:1/a").pars == {"user.name": name}


def test_options_that_exclude_each_other_are_refused() -> None:
    store = webhdfs.WebHdfsStorage({"token": "t", "proxy_to": "you"})
    with pytest.raises(
        errors.ConfigError, match=r"hdfs://host:1 cannot be opened \(.*token.*\): change storage_options"
    ):
        store.filesystem("hdfs://host:1/a")


# fsspec's private _call


def test_private_call_of_fsspec_has_the_signature_that_is_used() -> None:
    parameters = inspect.signature(fsspec_webhdfs.WebHDFS._call).parameters
    assert list(parameters) == ["self", "op", "method", "path", "data", "redirect", "kwargs"]
    assert parameters["kwargs"].kind is inspect.Parameter.VAR_KEYWORD
    assert parameters["redirect"].default is True


def answer_of(status: int, body: bytes) -> requests.Response:
    answer = requests.Response()
    answer.status_code = status
    answer._content = body
    return answer


@pytest.mark.parametrize("redirect", [True, False])
def test_private_call_of_fsspec_sends_one_request_of_the_session(
    redirect: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[dict[str, Any]] = []

    def send(**request: Any) -> requests.Response:
        sent.append(request)
        return answer_of(307, b"")

    store = webhdfs.WebHdfsStorage()
    monkeypatch.setattr(store.filesystem("hdfs://me@host:1/a").session, "request", send)
    answer = store._call("hdfs://me@host:1/a b#%20", "CREATE", "put", redirect=redirect, overwrite="false")
    assert answer.status_code == 307
    assert sent == [
        {
            "method": "PUT",
            "url": "http://host:1/webhdfs/v1/a%20b%23%2520",
            "params": {"overwrite": "false", "user.name": "me", "op": "CREATE"},
            "data": None,
            "allow_redirects": redirect,
        }
    ]


@pytest.mark.parametrize(
    ("exception", "expected"),
    [
        ("FileNotFoundException", FileNotFoundError),
        ("AccessControlException", PermissionError),
        ("IllegalArgumentException", ValueError),
        ("FileAlreadyExistsException", RuntimeError),
    ],
)
def test_private_call_of_fsspec_raises_the_errors_that_are_distinguished(
    exception: str, expected: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    body = f'{{"RemoteException": {{"exception": "{exception}", "message": "the message"}}}}'.encode()
    store = webhdfs.WebHdfsStorage()
    session = store.filesystem("hdfs://me@host:1/a").session
    monkeypatch.setattr(session, "request", lambda **_: answer_of(403, body))
    with pytest.raises(expected, match="the message"):
        store._call("hdfs://me@host:1/a", "MKDIRS", "put")
