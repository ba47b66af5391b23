"""Requests of the WebHDFS REST API: logins, several NameNodes, DataNodes."""

from __future__ import annotations

import base64
import contextlib
import getpass
import os
import re
import ssl
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from imagebeam import errors
from imagebeam.storage import gssapi, hadoop_files, interface, remote

if TYPE_CHECKING:
    import requests

_TIMEOUT_SEC = (5.0, 60.0)  # to connect, and between two pieces of an answer
_CONNECTIONS = 64
_METHODS = {"OPEN": "GET", "GETFILESTATUS": "GET", "LISTSTATUS_BATCH": "GET", "DELETE": "DELETE"}  # all others are PUT
_STREAM = {"Content-Type": "application/octet-stream"}  # HttpFS takes no other
_NEGOTIATE = re.compile(r"Negotiate(?:\s+([A-Za-z0-9+/=]+))?", re.IGNORECASE)
_BEFORE_SENDING = ("NewConnectionError", "NameResolutionError")  # errors of urllib3
_REQUIRED = 1  # of kerb_kwargs' mutual_authentication

OPTIONS = {  # storage_options of hdfs://; most names are those of fsspec's WebHDFS
    "user": "the user of simple authentication, or of `password`",
    "password": "for a gateway with basic authentication",
    "token": "a delegation token",
    "token_file": "a file with a delegation token, which is read again when the token is refused",
    "kerberos": "True for Kerberos alone, False for none; otherwise it is used where the server asks for it",
    "keytab": "a file with the keys of Kerberos",
    "kerb_kwargs": f"a dict of principal, hostname_override, mutual_authentication ({_REQUIRED}: the server must prove "
    "who it is)",
    "proxy_to": "the user in whose name a user works who may do so",
    "data_proxy": "a dict of parts of DataNodes' addresses and what to put there, or a function of an address",
    "use_https": "True for TLS, as for swebhdfs://",
    "session_cert": "a client certificate: a file, or a pair of certificate and key",
    "session_verify": "a file with the certificates of authorities, or False to check none",
}
_LOGINS = ("principal", "hostname_override", "mutual_authentication")


class NoConnectionError(ConnectionError):
    """There is no connection, so the request was not sent."""


class RefusedError(Exception):
    """A server's answer to a request that it did not carry out.

    Attributes:
        status: of HTTP.
        exception: the name of Hadoop's exception; "" if the answer has none.
    """

    def __init__(self, status: int, exception: str, message: str):
        super().__init__(message)
        self.status, self.exception = status, exception

    @property
    def is_of_standby(self) -> bool:
        """Whether the NameNode is not the active one. It refuses the login by a token, too."""
        return "StandbyException" in f"{self.exception} {self}"

    @property
    def is_of_token(self) -> bool:
        return "InvalidToken" in f"{self.exception} {self}"


def check_options(options: Mapping[str, Any]) -> None:
    """Checks the names of options, and that they go together.

    Raises:
        ConfigError: if not.
    """
    unknown = sorted(str(name) for name in options if name not in OPTIONS)
    if unknown:
        raise errors.ConfigError(
            "storage-options-unknown",
            f"storage_options has {unknown[0]!r}, which hdfs:// does not know; it takes {', '.join(OPTIONS)}",
        )
    given = {name for name, value in options.items() if value not in (None, False)}
    for one, others in {
        "token": ("token_file", "user", "proxy_to", "kerberos", "password"),
        "token_file": ("user", "proxy_to", "kerberos", "password"),
        "kerberos": ("user", "password"),
    }.items():
        if one in given and (other := next((each for each in others if each in given), None)):
            raise errors.ConfigError(
                "storage-cannot-open", f"storage_options has {one} and {other}, which exclude each other: leave out one"
            )
    if "password" in given and "user" not in given:
        raise errors.ConfigError("storage-cannot-open", "storage_options has password and no user: add user")
    kerberos = options.get("kerb_kwargs") or {}
    if unknown := sorted(str(name) for name in kerberos if name not in _LOGINS):
        raise errors.ConfigError(
            "storage-options-unknown",
            f"storage_options.kerb_kwargs has {unknown[0]!r}; it takes {', '.join(_LOGINS)}",
        )


class WebHdfsClient:
    """The NameNodes of one cluster, or a gateway, for one user. Thread-safe.

    A NameNode that is in standby or that cannot be reached is left for the next one. An error of any other kind is
    raised, since what was asked for may have been done: the storage tries again.
    """

    def __init__(self, nodes: Sequence[str], user: str | None, options: Mapping[str, Any], name: str = ""):
        """Connects to nothing yet.

        Args:
            nodes: addresses of the NameNodes, http://HOST:PORT.
            user: in the address of the file; None if it has none.
            options: see `OPTIONS`.
            name: of the nameservice; "" if it has none.

        Raises:
            ConfigError: if requests is not installed, there is a token file that cannot be read, or an option allows
                no user.
        """
        try:
            import requests
            from requests import adapters
        except ModuleNotFoundError as e:
            raise errors.missing_package_of_scheme(e, "hdfs") from e
        if user is not None:
            check_options({**options, "user": user})
        self._options = options
        self._nodes = [self._through_proxy(node) for node in nodes]
        self._active = 0
        self._services = [urllib.parse.urlsplit(node).hostname or "" for node in nodes] + [name] * bool(name)
        self._kerberos: bool | None = options.get("kerberos")
        self._login = options.get("kerb_kwargs") or {}
        self._user = user or options.get("user")
        self._login_name = os.environ.get("HADOOP_USER_NAME") or getpass.getuser()
        self._token_file = options.get("token_file")
        if (
            not any(self._options.get(each) for each in ("token", "token_file", "kerberos", "password"))
            and not self._user
        ):
            self._token_file = os.environ.get("HADOOP_TOKEN_FILE_LOCATION")
        self._token = options.get("token") or self._read_token()
        self._session = requests.Session()
        self._session.headers["Accept-Encoding"] = "identity"
        self._settings: dict[str, Mapping[str, Any]] = {}  # by server
        for scheme in ("http://", "https://"):
            self._session.mount(scheme, adapters.HTTPAdapter(pool_maxsize=_CONNECTIONS))

    def call(self, operation: str, path: str, file: str | None = None, **parameters: Any) -> requests.Response:
        """Sends one request, and follows it to a DataNode.

        Args:
            operation: as the REST API names it.
            path: in HDFS, with a slash at its beginning.
            file: a local file to upload.
            **parameters: of the operation.

        Raises:
            RefusedError: if a server refuses it.
            LoginError: if it refuses the login, or there is none.
            ConnectionError: if there is no whole answer.
        """
        for is_last in (*[False] * (len(self._nodes) - 1), True):
            number = self._active
            try:
                return self._call(self._nodes[number], operation, path, file, parameters)
            except (RefusedError, ConnectionError) as e:
                is_standby = isinstance(e, RefusedError) and e.is_of_standby
                if (is_standby or isinstance(e, ConnectionError)) and self._active == number:
                    self._active = (number + 1) % len(self._nodes)  # no other thread has gone on
                if is_last or not (is_standby or isinstance(e, NoConnectionError)):  # it may have been done
                    raise
        raise AssertionError

    def _call(
        self, node: str, operation: str, path: str, file: str | None, parameters: Mapping[str, Any]
    ) -> requests.Response:
        """Sends one request to one NameNode; once more if the token file holds another token now."""
        method, url = _METHODS.get(operation, "PUT"), f"{node}/webhdfs/v1{urllib.parse.quote(path)}"
        while True:
            token = self._token
            try:
                answer = self._send(method, url, {"op": operation, **parameters, **self._identity(token)})
                if answer.is_redirect:
                    answer = self._send(method, self._through_proxy(answer.headers["Location"]), file=file)
                if answer.status_code >= 300:
                    raise _refusal(answer)
                return answer
            except RefusedError as e:
                if e.is_of_standby or not (e.status == 401 or (token and e.is_of_token)):
                    raise
                self._token = self._options.get("token") or self._read_token()
                if self._token == token:
                    raise gssapi.LoginError(f"{e} (docs/storage.md says how to log in)") from e

    def _send(
        self, method: str, url: str, parameters: Mapping[str, Any] | None = None, file: str | None = None
    ) -> requests.Response:
        """Sends one request to one server, and again with a ticket if it asks for one."""
        # DataNodes of other addresses get neither the password nor a ticket: the NameNode has put a token in `url`.
        is_own = any(url.startswith(f"{node}/") for node in self._nodes)
        password = self._options.get("password")
        answer = self._request(method, url, parameters, file, (self._user, password) if is_own and password else None)
        if answer.status_code != 401 or not is_own or password or self._token or self._kerberos is False:
            return answer
        if _NEGOTIATE.match(answer.headers.get("WWW-Authenticate", "")) is None:
            return answer
        host = self._login.get("hostname_override") or urllib.parse.urlsplit(url).hostname or ""
        login = gssapi.Login(host, self._login.get("principal"), self._options.get("keytab"))
        with contextlib.closing(login):

            def add_ticket(request: requests.PreparedRequest) -> requests.PreparedRequest:
                request.headers["Authorization"] = f"Negotiate {base64.b64encode(login.token).decode()}"
                return request

            if self._kerberos is None and parameters and not self._user:  # of Kerberos's user only the server knows
                parameters = {name: value for name, value in parameters.items() if name != "user.name"}
            answer = self._request(method, url, parameters, file, add_ticket)  # its cookie does for the next ones
            if answer.status_code != 401:
                self._kerberos = True
                proof = _NEGOTIATE.match(answer.headers.get("WWW-Authenticate", ""))
                if proof is not None and proof[1]:
                    login.finish(base64.b64decode(proof[1]))
                elif self._login.get("mutual_authentication") == _REQUIRED:
                    raise gssapi.LoginError("the server does not prove who it is, kerb_kwargs asks for it")
        return answer

    def _request(
        self, method: str, url: str, parameters: Mapping[str, Any] | None, file: str | None, auth: Any
    ) -> requests.Response:
        import requests

        try:
            with contextlib.nullcontext() if file is None else open(file, "rb") as data:
                headers = None if file is None else _STREAM
                request = requests.Request(method, url, headers, None, data, parameters, auth or _as_it_is)
                prepared = self._session.prepare_request(request)
                return self._session.send(
                    prepared, timeout=_TIMEOUT_SEC, allow_redirects=False, **self._settings_of(interface.root_of(url))
                )
        except requests.RequestException as e:
            if "CERTIFICATE_VERIFY_FAILED" in str(e):
                raise _refused_certificates(interface.root_of(url), remote.cause_of(e)) from None
            reason = getattr(e.args[0] if e.args else None, "reason", None)
            is_sent = not isinstance(e, requests.ConnectTimeout) and type(reason).__name__ not in _BEFORE_SENDING
            # Without the request's address, which may have a token in it; a traceback would show that of `e`.
            cause = remote.cause_of(e)
            if is_sent and url.startswith("http://") and not isinstance(e, requests.Timeout):
                cause += " (a port of TLS needs swebhdfs://)"
            raise (ConnectionError if is_sent else NoConnectionError)(cause) from None

    def _settings_of(self, server: str) -> Mapping[str, Any]:
        """Returns the proxies and certificates for a server. Merging them takes 0.3 ms; a read sends three requests."""
        found = self._settings.get(server)
        if found is None:
            verify = self._options.get("session_verify")
            # None and True let $REQUESTS_CA_BUNDLE decide; it would win over what a session has.
            merged = self._session.merge_environment_settings(
                server, {}, None, verify, self._options.get("session_cert")
            )
            if server.startswith("https:"):
                _require_certificates(server, merged["verify"], merged["cert"])
            found = self._settings.setdefault(server, merged)
        return found

    def _identity(self, token: str | None) -> dict[str, str]:
        if token:
            return {"delegation": token}
        user = None if self._options.get("password") else self._user or (None if self._kerberos else self._login_name)
        proxied = self._options.get("proxy_to")
        return {name: value for name, value in (("user.name", user), ("doas", proxied)) if value is not None}

    def _read_token(self) -> str | None:
        if self._token_file is None:
            return None
        found = hadoop_files.read_token(self._token_file, self._services)
        if found is None and self._options.get("token_file"):  # the variable's file may be for YARN alone
            raise errors.ConfigError(
                "hdfs-token-file",
                f"{self._token_file} has no token of HDFS: write the file with `hdfs fetchdt`, or leave token_file out",
            )
        return found

    def _through_proxy(self, address: str) -> str:
        """Returns an address of the cluster as it is reached from here."""
        proxy = self._options.get("data_proxy") or {}
        if callable(proxy):
            return str(proxy(address))
        for part, other in proxy.items():
            address = address.replace(part, other, 1)
        return address


def _as_it_is(request: requests.PreparedRequest) -> requests.PreparedRequest:
    """Adds no login to a request. Without this, requests looks into ~/.netrc for each one."""
    return request


def _require_certificates(server: str, verify: Any, cert: Any) -> None:
    """Raises ConfigError if the files of certificates cannot be read: requests would raise it for each request."""
    path = verify if isinstance(verify, str) else None
    try:
        is_folder = path is not None and os.path.isdir(path)
        context = ssl.create_default_context(cafile=None if is_folder else path, capath=path if is_folder else None)
        if cert is not None:
            context.load_cert_chain(*([cert] if isinstance(cert, str) else cert))
    except OSError as e:  # also of ssl
        raise _refused_certificates(server, f"{cert or path}: {e.strerror or e}") from e


def _refused_certificates(server: str, reason: str) -> errors.ConfigError:
    return errors.ConfigError(
        "hdfs-certificate",
        f"{server}: no connection by TLS ({reason}): give session_verify, or $REQUESTS_CA_BUNDLE, a file with the "
        "certificates of the server's authority, and session_cert that of the client if the server asks for one",
    )


def _refusal(answer: requests.Response) -> RefusedError:
    try:
        found = answer.json()["RemoteException"]
        return RefusedError(answer.status_code, found["exception"], found["message"])
    except (ValueError, KeyError, TypeError):
        return RefusedError(answer.status_code, "", f"HTTP {answer.status_code} {answer.reason}")
