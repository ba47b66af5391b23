"""WebHdfsStorage, against servers on this machine that answer as NameNodes, DataNodes and gateways do."""

from __future__ import annotations

import base64
import contextlib
import ctypes
import errno
import http.server
import json
import pathlib
import socket
import threading
import traceback
import urllib.parse
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest

from imagebeam import storage
from imagebeam.storage import hadoop_files, remote, webhdfs
from tests import case_tables, error_texts

ONE_ATTEMPT_SEC = 0.1  # a budget below the first wait
STATUS = {"FileStatus": {"type": "FILE", "length": 3, "modificationTime": 1, "pathSuffix": ""}}


class Server:
    """A server with one answer for all requests, which it keeps.

    Attributes:
        answer: takes a request; returns a status, a body and headers.
        requests: method, path, parameters and headers of each one.
    """

    def __init__(self, port: int) -> None:
        self.node = f"127.0.0.1:{port}"
        self.uri = f"hdfs://{self.node}"
        self.answer: Callable[[dict[str, str]], Any] = lambda parameters: ok(STATUS)
        self.requests: list[tuple[str, str, dict[str, str], dict[str, str]]] = []

    @property
    def parameters(self) -> dict[str, str]:
        return self.requests[-1][2]


def ok(value: Any) -> tuple[int, bytes, dict[str, str]]:
    return 200, json.dumps(value).encode(), {}


def refused(exception: str, message: str = "the text", status: int = 403) -> tuple[int, bytes, dict[str, str]]:
    return status, json.dumps({"RemoteException": {"exception": exception, "message": message}}).encode(), {}


@contextlib.contextmanager
def serve() -> Iterator[Server]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def answer(self) -> None:
            path, _, query = self.path.partition("?")
            parameters = dict(urllib.parse.parse_qsl(query))
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            server.requests.append((self.command, urllib.parse.unquote(path), parameters, dict(self.headers)))
            status, body, headers = server.answer(parameters)
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_PUT = do_DELETE = answer

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        server = Server(listening.server_address[1])
        thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            listening.shutdown()
            thread.join()


@pytest.fixture
def server() -> Iterator[Server]:
    with serve() as server:
        yield server


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HADOOP_USER_NAME", "login")
    monkeypatch.delenv("HADOOP_TOKEN_FILE_LOCATION", raising=False)


# Addresses and options


def test_address_is_parsed() -> None:
    for uri, expected in [
        ("hdfs://me@host:9870/a/b", (("http://host:9870",), "me", "/a/b", "")),
        ("hdfs://you%40corp@10.0.0.1:1/", (("http://10.0.0.1:1",), "you@corp", "/", "")),
        ("hdfs://host:9870", (("http://host:9870",), None, "/", "")),
        ("webhdfs://[::1]:9870/a:b", (("http://[::1]:9870",), None, "/a:b", "")),
        ("SWEBHDFS://host:9871/a,b", (("https://host:9871",), None, "/a,b", "")),
        ("hdfs://one:1,two:2/a", (("http://one:1", "http://two:2"), None, "/a", "")),
    ]:
        assert webhdfs.parse_hdfs(uri) == expected
        assert webhdfs.path_of(uri) == expected[2]
    assert webhdfs.parse_hdfs("hdfs://host:1/a", is_secure=True).nodes == ("https://host:1",)


def test_address_without_a_port_is_refused() -> None:
    for uri in [
        "hdfs:///a",
        "hdfs://folder/file",
        "hdfs://host:x/a",
        "hdfs://:9870/a",
        "hdfs://a:1,b/x",
        "shdfs://a:1",
    ]:
        with case_tables.named(uri), error_texts.raises("address-no-namenode"):
            webhdfs.parse_hdfs(uri)


def test_nameservice_is_looked_up_in_hdfs_site(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(**properties: str) -> None:
        lines = [
            f"<property><name>{name.replace('__', '-')}</name>\n<value> {value} </value></property>"
            for name, value in properties.items()
        ]
        (tmp_path / "hdfs-site.xml").write_text(f"<configuration>{''.join(lines)}</configuration>")

    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    with error_texts.raises("address-no-namenode"):  # there is no file
        webhdfs.parse_hdfs("hdfs://pets/a")
    site = {"dfs.ha.namenodes.pets": "one, two", "dfs.namenode.http__address.pets.one": "a:1"}
    write(**site)
    with error_texts.raises("hdfs-site-unreadable"):
        webhdfs.parse_hdfs("hdfs://pets/a")
    site["dfs.namenode.http__address.pets.two"] = "b:2"
    write(**site)
    assert webhdfs.parse_hdfs("hdfs://me@pets/a") == (("http://a:1", "http://b:2"), "me", "/a", "pets")
    with error_texts.raises("address-no-namenode"):
        webhdfs.parse_hdfs("hdfs://other/a")
    secure = {f"dfs.namenode.https__address.pets.{name}": f"{name}:3" for name in ("one", "two")}
    write(**site, **secure, **{"dfs.http.policy": "HTTPS_ONLY"})
    assert webhdfs.parse_hdfs("hdfs://pets").nodes == ("https://one:3", "https://two:3")
    (tmp_path / "hdfs-site.xml").write_text("<configuration>")
    with error_texts.raises("hdfs-site-unreadable"):
        webhdfs.parse_hdfs("hdfs://pets/a")


def test_options_that_are_unknown_or_exclude_each_other_are_refused() -> None:
    for code, options in [
        ("storage-options-unknown", {"tokn": "t"}),
        ("storage-options-unknown", {"kerb_kwargs": {"service": "HTTP"}}),
        ("storage-cannot-open", {"token": "t", "proxy_to": "you"}),
        ("storage-cannot-open", {"token_file": "f", "kerberos": True}),
        ("storage-cannot-open", {"kerberos": True, "user": "me"}),
        ("storage-cannot-open", {"password": "p"}),
    ]:
        with case_tables.named(code, options), error_texts.raises(code):
            webhdfs.WebHdfsStorage(options)
    for options in ({"token": "t"}, {"kerberos": True}):
        store = webhdfs.WebHdfsStorage(options)
        with case_tables.named(options), error_texts.raises("storage-cannot-open"):
            store.read("hdfs://me@host:1/a")


def test_user_is_that_of_the_address_the_options_or_the_login_name(
    server: Server, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = tmp_path / "token"
    token.write_text("of-file\n")
    for user, options, expected in [
        ("me@", {}, {"user.name": "me"}),
        ("me@", {"user": "you"}, {"user.name": "me"}),
        ("", {}, {"user.name": "login"}),
        ("", {"user": "you"}, {"user.name": "you"}),
        ("", {"kerberos": True}, {}),
        ("", {"token": "t"}, {"delegation": "t"}),
        ("", {"token_file": str(token)}, {"delegation": "of-file"}),
        ("", {"proxy_to": "you"}, {"user.name": "login", "doas": "you"}),
        ("", {"user": "me", "password": "p"}, {}),
    ]:
        webhdfs.WebHdfsStorage(options).stat(f"hdfs://{user}{server.node}/a")
        assert server.parameters == {"op": "GETFILESTATUS", **expected}
    basic = f"Basic {base64.b64encode(b'me:p').decode()}"
    assert server.requests[-1][3]["Authorization"] == basic
    store = webhdfs.WebHdfsStorage()
    for name in ("one", "other"):  # follows a login name that changes
        monkeypatch.setenv("HADOOP_USER_NAME", name)
        store.stat(f"{server.uri}/a")
        assert server.parameters["user.name"] == name
    monkeypatch.setenv("HADOOP_TOKEN_FILE_LOCATION", str(token))
    for options, expected in [({}, {"delegation": "of-file"}), ({"user": "you"}, {"user.name": "you"})]:
        webhdfs.WebHdfsStorage(options).stat(f"{server.uri}/a")
        assert server.parameters == {"op": "GETFILESTATUS", **expected}


# Answers


def test_refusal_is_an_error_of_the_file_or_is_tried_again(server: Server) -> None:
    for exception, kind, number in [
        ("FileNotFoundException", FileNotFoundError, errno.ENOENT),
        ("AccessControlException", PermissionError, errno.EACCES),
        ("SecurityException", PermissionError, errno.EACCES),
        ("IllegalArgumentException", OSError, errno.EINVAL),
        ("RetriableException", storage.UnavailableError, errno.EIO),
        ("StandbyException", storage.UnavailableError, errno.EIO),
    ]:
        answer = refused(exception)
        server.answer = lambda parameters, answer=answer: answer  # type: ignore[misc]
        with case_tables.named(exception), remote.budget(ONE_ATTEMPT_SEC), pytest.raises(OSError) as caught:
            webhdfs.WebHdfsStorage().stat(f"{server.uri}/a")
        assert (type(caught.value), caught.value.errno) == (kind, number)
    server.answer = lambda parameters: refused("IOException", "x already exists")
    with pytest.raises(FileExistsError):
        webhdfs.WebHdfsStorage().rename(f"{server.uri}/a", f"{server.uri}/b")
    server.answer = lambda parameters: (500, b"<html>", {})
    with remote.budget(ONE_ATTEMPT_SEC), pytest.raises(storage.UnavailableError, match="HTTP 500"):
        webhdfs.WebHdfsStorage().stat(f"{server.uri}/a")


def test_data_node_is_reached_through_the_proxy_without_the_password(server: Server) -> None:
    with serve() as data_node:
        location = {"Location": "http://datanode:1/webhdfs/v1/a?op=OPEN&delegation=t"}
        server.answer = lambda parameters: (307, b"", location)
        data_node.answer = lambda parameters: (200, b"bytes", {})
        for proxy in ({"datanode:1": data_node.node}, lambda url: url.replace("datanode:1", data_node.node)):
            store = webhdfs.WebHdfsStorage({"user": "me", "password": "p", "data_proxy": proxy})
            assert store.read(f"{server.uri}/a b") == b"bytes"
            assert server.requests[-1][1] == "/webhdfs/v1/a b"
            assert data_node.parameters == {"op": "OPEN", "delegation": "t"}
            assert "Authorization" not in data_node.requests[-1][3]


def test_answer_that_is_cut_short_is_asked_for_again(server: Server) -> None:
    answers = iter([(200, b"byt", {"Content-Length": "5", "Connection": "close"}), (200, b"bytes", {})])
    server.answer = lambda parameters: next(answers)
    assert webhdfs.WebHdfsStorage().read(f"{server.uri}/a") == b"bytes"


def test_gateway_without_options_of_a_rename_replaces_only_where_it_may(server: Server) -> None:
    files = {"/webhdfs/v1/a", "/webhdfs/v1/b"}

    def answer(parameters: dict[str, str]) -> Any:
        path = server.requests[-1][1]
        if parameters["op"] == "GETFILESTATUS":
            return ok(STATUS) if path in files else refused("FileNotFoundException", status=404)
        if parameters["op"] == "DELETE":
            files.discard(path)
            return ok({"boolean": True})
        target = f"/webhdfs/v1{parameters['destination']}"
        if path not in files or target in files:
            return ok({"boolean": False})
        files.discard(path)
        files.add(target)
        return ok({"boolean": True})

    server.answer, store = answer, webhdfs.WebHdfsStorage()
    store.rename(f"{server.uri}/a", f"{server.uri}/b")
    assert files == {"/webhdfs/v1/b"}
    with pytest.raises(FileNotFoundError):
        store.rename(f"{server.uri}/a", f"{server.uri}/c")


def test_login_that_is_refused_is_a_fault_and_kerberos_needs_its_library(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.answer = lambda parameters: (401, b"<html>", {"WWW-Authenticate": "Negotiate"})
    for options in ({"user": "me", "password": "p"}, {"token": "t"}, {"kerberos": False}):
        with (
            case_tables.named(options),
            remote.budget(ONE_ATTEMPT_SEC),
            pytest.raises(storage.UnavailableError) as caught,
        ):
            webhdfs.WebHdfsStorage(options).stat(f"{server.uri}/a")
        assert "HTTP 401 Unauthorized (docs/storage.md says how to log in)" in str(caught.value)
    monkeypatch.setattr(ctypes, "CDLL", mock.Mock(side_effect=OSError))
    with error_texts.raises("package-missing"):
        webhdfs.WebHdfsStorage().stat(f"{server.uri}/a")


def test_files_of_certificates_that_cannot_be_read_are_refused(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bad.pem").write_text("x")
    monkeypatch.delenv("REQUESTS_CA_BUNDLE", raising=False)
    monkeypatch.delenv("CURL_CA_BUNDLE", raising=False)
    for name in ("none.pem", "bad.pem"):
        path = str(tmp_path / name)
        for options in ({"session_verify": path}, {"session_cert": path}, {"session_cert": [path, path]}):
            with case_tables.named(options), error_texts.raises("hdfs-certificate"):
                webhdfs.WebHdfsStorage(options).stat("swebhdfs://127.0.0.1:1/a")
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "none.pem"))
    with error_texts.raises("hdfs-certificate"):
        webhdfs.WebHdfsStorage().stat("swebhdfs://127.0.0.1:1/a")


def test_answer_that_is_none_of_http_hints_at_tls() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(bytes.fromhex("15030300020250"))  # an alert of TLS

        thread = threading.Thread(target=answer)
        thread.start()
        with remote.budget(ONE_ATTEMPT_SEC), pytest.raises(storage.UnavailableError, match="needs swebhdfs://"):
            webhdfs.WebHdfsStorage().stat(f"hdfs://127.0.0.1:{listening.getsockname()[1]}/a")
        thread.join()


# Several NameNodes


def test_name_node_that_is_in_standby_or_dead_is_left_for_the_other(server: Server) -> None:
    with serve() as other:
        # As to one that logs in by a token; to others it says StandbyException alone.
        standby = refused(
            "SecurityException", "Failed to obtain user group information: InvalidToken: StandbyException"
        )
        server.answer, both = lambda parameters: standby, f"hdfs://{server.node},{other.node}"
        store = webhdfs.WebHdfsStorage()
        with remote.budget(ONE_ATTEMPT_SEC):
            for _ in range(3):
                store.stat(f"{both}/a")
            assert (len(server.requests), len(other.requests)) == (1, 3)
            server.answer, other.answer = other.answer, server.answer
            store.stat(f"{both}/a")
            assert (len(server.requests), len(other.requests)) == (2, 4)
    with remote.budget(ONE_ATTEMPT_SEC):  # the other one has ended
        webhdfs.WebHdfsStorage().stat(f"hdfs://{other.node},{server.node}/a")
        with pytest.raises(storage.UnavailableError, match="Connection refused"):
            webhdfs.WebHdfsStorage().stat(f"{other.uri}/a")


def test_answer_that_is_lost_is_asked_for_at_the_other_name_node_in_the_next_attempt(server: Server) -> None:
    with serve() as other:
        server.answer = lambda parameters: (200, b"{", {"Content-Length": "9", "Connection": "close"})
        both = f"hdfs://{server.node},{other.node}/a"
        with remote.budget(ONE_ATTEMPT_SEC), pytest.raises(storage.UnavailableError):
            webhdfs.WebHdfsStorage().stat(both)
        assert not other.requests
        webhdfs.WebHdfsStorage().stat(both)
        assert len(other.requests) == 1


# Tokens


def token_file(*tokens: tuple[str, str, bytes]) -> bytes:
    """A token file of Hadoop with these kinds, services and identifiers. The password is "secret"."""

    def text(data: bytes) -> bytes:
        number = len(data)
        return (bytes([number]) if number < 128 else bytes([256 - 113, number])) + data

    parts = [
        text(service.encode()) + text(identifier) + text(b"secret") + text(kind.encode()) + text(service.encode())
        for kind, service, identifier in tokens
    ]
    return b"".join((b"HDTS\0", bytes([len(tokens)]), *parts, b"\0"))


def test_token_of_the_cluster_is_read_from_a_file_of_hadoop(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "tokens"
    hdfs, long = "HDFS_DELEGATION_TOKEN", b"x" * 200
    yarn = ("YARN_AM_RM_TOKEN", "10.0.0.9:1", b"am")
    path.write_bytes(token_file(yarn, (hdfs, "127.0.0.1:8020", long), (hdfs, "ha-hdfs:pets", b"two")))
    for services, expected in [(["127.0.0.1"], long), (["localhost"], long), (["host.invalid", "pets"], b"two")]:
        found = base64.urlsafe_b64decode((hadoop_files.read_token(str(path), services) or "") + "==")
        assert expected in found and b"secret" in found and found.endswith(b"8020" if expected == long else b"pets")
    with error_texts.raises("hdfs-token-file"):
        hadoop_files.read_token(str(path), ["other.invalid"])
    path.write_bytes(token_file(yarn, (hdfs, "10.0.0.1:8020", b"one")))  # the only one
    assert hadoop_files.read_token(str(path), ["other.invalid"]) is not None
    path.write_bytes(token_file(yarn))
    assert hadoop_files.read_token(str(path), ["host"]) is None


def test_token_file_that_cannot_be_read_is_refused(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "tokens"
    whole = token_file(("HDFS_DELEGATION_TOKEN", "10.0.0.1:8020", b"one"))
    for data in (None, b"HDTS\1", whole[:-20], b"\xff\xfe", b"", b"\n", token_file(("YARN_AM_RM_TOKEN", "a:1", b"am"))):
        if data is not None:
            path.write_bytes(data)
        with case_tables.named(data), error_texts.raises("hdfs-token-file"):
            webhdfs.WebHdfsStorage({"token_file": str(path)}).stat("hdfs://host:1/a")


def test_token_that_is_refused_is_read_again_and_stays_out_of_errors(server: Server, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "token"
    path.write_text("secret-1")
    store, valid = webhdfs.WebHdfsStorage({"token_file": str(path)}), "secret-1"

    def answer(parameters: dict[str, str]) -> Any:
        if parameters["delegation"] == valid:
            return ok(STATUS)
        return refused("InvalidToken", "token (token for me) is expired")

    server.answer = answer
    store.stat(f"{server.uri}/a")
    valid = "secret-2"
    with remote.budget(ONE_ATTEMPT_SEC), pytest.raises(storage.UnavailableError, match="is expired") as caught:
        store.stat(f"{server.uri}/a")
    assert storage.is_fault(caught.value)  # the image is no reject
    assert "secret" not in "".join(traceback.format_exception(caught.value))
    path.write_text("secret-2")
    store.stat(f"{server.uri}/a")
    dead = server.uri.replace(server.node, "127.0.0.1:1")
    with remote.budget(ONE_ATTEMPT_SEC), pytest.raises(storage.UnavailableError) as caught:
        store.stat(f"{dead}/a")
    assert "secret" not in "".join(traceback.format_exception(caught.value))
