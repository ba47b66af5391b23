"""An S3 on this machine for tests: moto's server, in a process of its own, so that each has other objects."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

# Ends with its standard input. Arguments: names of headers that it ignores, as servers do that do not know conditions;
# and answers to the first requests that have If-Match, such as "400 ExpiredToken".
_SERVE = """
import sys, threading
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug import serving
moto, requests = DomainDispatcherApplication(create_backend_app), []
refusals = [each for each in sys.argv[1:] if not each.startswith("HTTP_")]
def answer(environ, start_response):
    if environ["PATH_INFO"] == "/requests":
        start_response("200 OK", [])
        return ["\\n".join(requests).encode()]
    requests.append(f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}?{environ['QUERY_STRING']}")
    if refusals and "HTTP_IF_MATCH" in environ and (refusal := refusals.pop(0)):
        status, code = refusal.split()
        start_response(f"{status} Refused", [])
        return [f"<Error><Code>{code}</Code><Message>refused</Message></Error>".encode()]
    for name in sys.argv[1:]:
        environ.pop(name, None)
    return moto(environ, start_response)
class Silent(serving.WSGIRequestHandler):
    def log_request(self, *_):
        pass
server = serving.make_server("127.0.0.1", 0, answer, threaded=True, request_handler=Silent)
threading.Thread(target=server.serve_forever, daemon=True).start()
print(server.server_port, flush=True)
sys.stdin.read()
"""
_CONDITIONS = ("HTTP_IF_MATCH", "HTTP_IF_NONE_MATCH")
KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}


class Server:
    """A running server.

    Attributes:
        url: of the server.
        environment: variables that lead boto and s3fs to it.
    """

    def __init__(self, url: str):
        self.url = url
        self.environment = {**KEYS, "AWS_ENDPOINT_URL": url, "AWS_CONFIG_FILE": "/dev/null"}

    def options(self) -> dict[str, Any]:
        """Returns options of a storage that lead to it."""
        region = {"region_name": "us-east-1"}
        return {"endpoint_url": self.url, "key": "test", "secret": "test", "client_kwargs": region}

    def requests(self) -> list[str]:
        """Returns method, path and query of all requests so far."""
        with urllib.request.urlopen(f"{self.url}/requests") as answer:
            text: str = answer.read().decode()
        return text.splitlines()

    def client(self) -> Any:
        """Returns a client of boto3."""
        import boto3

        keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "region_name": "us-east-1"}
        return boto3.client("s3", endpoint_url=self.url, **keys)

    def bucket(self, name: str) -> Any:
        """Creates a bucket; returns a client."""
        client = self.client()
        client.create_bucket(Bucket=name)
        return client


@contextlib.contextmanager
def run(has_conditions: bool = True, refusals: Sequence[str] = ()) -> Iterator[Server]:
    """Runs a server. Skips the test where moto is not installed.

    Args:
        has_conditions: whether it keeps the conditions of writes, or ignores them.
        refusals: answers to the first requests with If-Match, in this order: "STATUS CODE", or "" for its own answer.
    """
    pytest.importorskip("moto.server")
    command = [sys.executable, "-c", _SERVE, *([] if has_conditions else _CONDITIONS), *refusals]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield Server(f"http://127.0.0.1:{int(process.stdout.readline())}")
        finally:
            process.kill()
