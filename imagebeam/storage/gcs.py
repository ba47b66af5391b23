"""Google Cloud Storage, through google-cloud-storage: one request for a small object, generations pinned."""

from __future__ import annotations

import base64
import contextlib
import errno
import json
import os
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

from imagebeam import concurrency, errors
from imagebeam.storage import interface, remote

_PAGE_OBJECTS = 1000
_TIMEOUT_SEC = (5.0, 60.0)  # to connect, and between two pieces of an answer
_CONNECTIONS = 64
_TRANSIENT = (408, 429)  # status codes of client errors that pass
_DELETES_AT_ONCE = 64
_LISTED = "items(name,size,generation),prefixes,nextPageToken"
_CLOUD = "https://www.googleapis.com/auth/cloud-platform"
_SCOPE = "https://www.googleapis.com/auth/devstorage."

OPTIONS = {  # storage_options of gs://; names and values are those of gcsfs, so that options can be shared with it
    "token": "None or 'google_default' for the default credentials, 'anon' for none, 'cloud' for the machine's service "
    "account, a JSON key file, its content as a dict, an access token, or google.auth credentials",
    "project": "the project that pays and that requests are counted for",
    "access": "'read_only', 'read_write' or 'full_control'",
    "requester_pays": "True or a project, to be billed for a bucket whose requester pays",
    "impersonate": "a service account to act as, NAME@PROJECT.iam.gserviceaccount.com: the credentials need the role "
    "roles/iam.serviceAccountTokenCreator on it",
    "kms_key_name": "the key of Cloud KMS that objects are written with, projects/P/locations/L/keyRings/R/...",
    "endpoint_url": "another server than storage.googleapis.com",
    "requests_timeout": "seconds between two pieces of an answer",
}


class GcsStorage(remote.RemoteStorage):
    """gs://BUCKET/NAME. A directory is the beginning of a name, up to a slash."""

    swaps_atomically = True
    replaces_in_place = True

    def __init__(self, options: Mapping[str, Any] | None = None):
        """Checks the options. Connects to nothing yet.

        Args:
            options: see `OPTIONS`.

        Raises:
            ConfigError: if an option is not known.
        """
        self._options = dict(options or {})
        unknown = sorted(str(name) for name in self._options if name not in OPTIONS)
        if unknown:
            raise errors.ConfigError(
                "storage-options-unknown",
                f"storage_options has {unknown[0]!r}, which gs:// does not know; it takes {', '.join(OPTIONS)}",
            )
        seconds = self._options.get("requests_timeout")
        timeout_sec = _TIMEOUT_SEC if seconds is None else (_TIMEOUT_SEC[0], seconds)
        self._once: dict[str, Any] = {"retry": None, "timeout": timeout_sec}  # RemoteStorage tries again
        super().__init__()

    def rebuild(self) -> None:
        self._client: Any = None
        self._moves_at_once: dict[str, bool] = {}  # by bucket: whether it moves objects; the first move shows it
        self._is_anonymous_for_want_of_credentials = False

    def lasting_error(self, error: Exception, uri: str) -> Exception | None:
        from google.api_core import exceptions
        from google.auth import exceptions as auth_exceptions

        detail = getattr(error, "message", None) or str(error)
        if isinstance(error, exceptions.NotFound):
            bucket, name = _parse(uri)
            is_bucket = not name or "bucket does not exist" in detail
            what = f"there is no bucket {bucket!r}" if is_bucket else f"there is no {uri}"
            return FileNotFoundError(errno.ENOENT, what)
        is_denied = isinstance(error, (exceptions.Forbidden, exceptions.Unauthorized))
        is_refused = isinstance(error, auth_exceptions.RefreshError) and not error.retryable
        if is_refused or (is_denied and self._is_anonymous_for_want_of_credentials):
            reason = "credentials were refused" if is_refused else "no credentials"
            return errors.ConfigError(
                "gcs-no-credentials",
                f"{uri}: {reason} for Google Cloud: gcloud auth application-default login, or set "
                "GOOGLE_APPLICATION_CREDENTIALS",
            )
        if is_denied:
            return interface.denied(uri, detail)
        if isinstance(error, exceptions.PreconditionFailed):
            return interface.taken(uri)
        if isinstance(error, exceptions.ClientError) and error.code not in _TRANSIENT:
            return OSError(errno.EINVAL, f"{uri}: {detail}")
        return None

    def list_blobs(self, bucket: str, prefix: str, **options: Any) -> Any:
        """Returns the iterator of google-cloud-storage over the objects whose names begin with `prefix`."""
        return self._connected().list_blobs(
            self._bucket(bucket), prefix=prefix, fields=_LISTED, page_size=_PAGE_OBJECTS, **self._once, **options
        )

    def list_range(self, uri: str, start: str, end: str) -> Iterator[list[interface.Entry]]:
        """Yields the entries of a directory from the name `start` to before `end`: see `interface.RangeLister`."""
        pages = self._list(uri, start, end)
        while (page := self._retry(uri, lambda: next(pages, None))) is not None:
            yield page

    def first_name(self, uri: str, start: str, end: str) -> str | None:
        """Returns the first name from `start` to before `end` by one request: see `interface.RangeLister`."""
        bucket, prefix = _parse_directory(uri)
        bounds = _bounds(prefix, start, end)
        found = self._retry(uri, lambda: list(self.list_blobs(bucket, prefix, max_results=1, **bounds)))
        if not found:
            return None
        name, slash, _ = found[0].name[len(prefix) :].partition("/")
        return f"{name}{slash}"

    def stored_checksum(self, uri: str) -> tuple[int, int] | None:
        """Returns the size in bytes and the crc32c of an object by one request that reads none of it.

        None for an object whose crc32c is hidden: it is encrypted with a key of the customer.
        """
        return self._retry(uri, lambda: self._checksum_kept(uri))

    def replace(self, uri: str, old: bytes, new: bytes) -> bool:
        """Replaces a small object if it holds `old`; returns whether this call did it."""
        try:
            version = self.stat(uri).version
            if self.read(uri, version=version) != old:
                return False
            self._retry(uri, lambda: self._put_over(uri, new, version))
        except (FileNotFoundError, interface.ChangedError):
            return False
        except FileExistsError:
            return self._holds(uri, new)  # an earlier attempt may have succeeded, and the response was lost
        return True

    def _list(self, uri: str, start: str = "", end: str = "") -> Iterator[list[interface.Entry]]:
        bucket, prefix = _parse_directory(uri)
        bounds = _bounds(prefix, start, end)

        def request(token: str) -> tuple[list[interface.Entry], str]:
            listed = self.list_blobs(bucket, prefix, delimiter="/", page_token=token or None, **bounds)
            page = next(listed.pages)
            entries = [
                interface.Entry(blob.name[len(prefix) :], interface.FILE, blob.size, blob.generation, (0, 0))
                for blob in page
                if blob.name != prefix  # a directory that some tools mark with an empty object
            ]
            for folder in page.prefixes:
                name = folder[len(prefix) : -1]  # empty where two slashes follow each other
                kind = interface.DIRECTORY if name else interface.SPECIAL
                entries.append(interface.Entry(name, kind, 0, 0, interface.identity_of(f"gs://{bucket}/{folder}")))
            return entries, listed.next_page_token or ""

        return remote.Pages(request)

    def _stat(self, uri: str) -> interface.Entry:
        bucket, name = _parse(uri)
        last = name.rpartition("/")[2]
        blob = self._bucket(bucket).get_blob(name, **self._once) if name else None
        if blob is not None:
            return interface.Entry(last, interface.FILE, blob.size, blob.generation, (0, 0))
        below = self.list_blobs(bucket, f"{name}/" if name else "", max_results=1)
        if not list(below) and name:  # a bucket may be empty: the answer alone shows that it exists
            raise FileNotFoundError(errno.ENOENT, f"there is no {uri}")
        return interface.Entry(last, interface.DIRECTORY, 0, 0, interface.identity_of(uri))

    def _read(self, uri: str, offset: int, length: int, version: int) -> bytes:
        from google.api_core import exceptions

        if length == 0:
            return b""
        blob = self._blob(uri, version or None)
        end = offset + length - 1 if length > 0 else None
        whole = offset == 0 and end is None
        try:
            return blob.download_as_bytes(
                start=None if whole else offset, end=end, checksum="crc32c" if whole else None, **self._once
            )
        except exceptions.RequestRangeNotSatisfiable:
            return b""  # an empty object, or beyond its end
        except exceptions.NotFound:
            if version:
                self._raise_if_changed(uri)
            raise

    def _append(self, uri: str, file: BinaryIO, length: int, version: int) -> None:
        from google.api_core import exceptions

        start, blob = file.tell(), self._blob(uri, version)
        try:  # streamed: one request brings a whole file, and nothing of it stays in memory
            blob.download_to_file(file, start=start, end=start + length - 1, checksum=None, **self._once)
        except exceptions.NotFound:
            self._raise_if_changed(uri)
            raise

    def _raise_if_changed(self, uri: str) -> None:
        """Raises ChangedError if there is an object, of another generation than the one that was not found."""
        if self._blob(uri).exists(**self._once):
            raise interface.ChangedError(errno.ESTALE, f"{uri} was replaced") from None

    def _put(self, path: str, uri: str, must_be_new: bool) -> None:
        self._new_blob(uri).upload_from_filename(
            path,
            content_type="application/octet-stream",
            checksum="crc32c",
            if_generation_match=0 if must_be_new else None,
            **self._once,
        )

    def _put_over(self, uri: str, data: bytes, generation: int) -> None:
        kind = "application/octet-stream"
        self._new_blob(uri).upload_from_string(data, kind, if_generation_match=generation, **self._once)

    def _checksum(self, uri: str) -> tuple[int, int]:
        return self._checksum_kept(uri) or super()._checksum(uri)

    def _checksum_kept(self, uri: str) -> tuple[int, int] | None:
        blob = self._blob(uri)
        blob.reload(**self._once)
        return None if blob.crc32c is None else (int(blob.size), int.from_bytes(base64.b64decode(blob.crc32c), "big"))

    def _move(self, source: str, target: str, must_be_new: bool, generation: int | None = None) -> None:
        conditions = {"if_generation_match": 0 if must_be_new else None, "if_source_generation_match": generation}
        if not self._moved_at_once(source, target, conditions):
            self._copy_and_remove(source, target, conditions, generation)
            if _parse(source)[0] == _parse(target)[0]:
                self._moves_at_once.setdefault(_parse(source)[0], False)  # the copy found what the move did not

    def _move_version(self, source: str, target: str, version: int) -> None:
        from google.api_core import exceptions

        try:
            self._move(source, target, False, version or None)
        except exceptions.PreconditionFailed as e:
            raise interface.ChangedError(errno.ESTALE, f"{source} was replaced") from e

    def _moved_at_once(self, source: str, target: str, conditions: Mapping[str, int | None]) -> bool:
        """Moves an object within its bucket by one atomic request; returns False if that is not possible here.

        At first it was a request for buckets with folders only; other servers, and google-cloud-storage 2, lack it.

        Source: https://cloud.google.com/storage/docs/json_api/v1/objects/move
        """
        from google.api_core import exceptions

        # a server that does not know the request may call it anything
        unknown = (
            exceptions.BadRequest,
            exceptions.NotFound,
            exceptions.MethodNotAllowed,
            exceptions.MethodNotImplemented,
        )
        origin, (bucket, name) = self._blob(source), _parse(target)
        is_within = _parse(source)[0] == bucket and not self._options.get("kms_key_name")  # a move takes no key
        if not is_within or not self._moves_at_once.get(bucket, hasattr(origin.bucket, "move_blob")):
            return False
        try:
            origin.bucket.move_blob(origin, name, **conditions, **self._once)
        except unknown:
            if bucket in self._moves_at_once:
                raise
            return False  # the copy shows whether there is an object
        self._moves_at_once[bucket] = True
        return True

    def _copy_and_remove(
        self, source: str, target: str, conditions: Mapping[str, int | None], generation: int | None
    ) -> None:
        origin, copy = self._blob(source), self._new_blob(target)
        token = None
        while True:
            token, _, _ = copy.rewrite(origin, token, **conditions, **self._once)
            if token is None:
                break
        self._remove(source, generation)

    def _remove(self, uri: str, generation: int | None = None) -> None:
        from google.api_core import exceptions

        with contextlib.suppress(exceptions.NotFound):
            self._blob(uri).delete(if_generation_match=generation, **self._once)

    def _remove_version(self, uri: str, version: int) -> None:
        from google.api_core import exceptions

        try:
            self._remove(uri, version or None)
        except exceptions.PreconditionFailed:  # also if an attempt before has removed it
            self._raise_if_changed(uri)

    def _remove_tree(self, uri: str) -> None:
        bucket, name = _parse(uri)
        found = (f"gs://{bucket}/{blob.name}" for blob in self.list_blobs(bucket, f"{name}/"))
        concurrency.call_each(self.remove, found, _DELETES_AT_ONCE)

    def _bucket(self, name: str) -> Any:
        client, payer = self._connected(), self._options.get("requester_pays")
        if payer is True and not client.project:
            raise errors.ConfigError(
                interface.CANNOT_OPEN,
                "storage_options has requester_pays: True, and no project is known that pays: give project, or "
                "requester_pays: PROJECT",
            )
        return client.bucket(name, user_project=(client.project if payer is True else payer) or None)

    def _blob(self, uri: str, generation: int | None = None) -> Any:
        bucket, name = _parse(uri)
        return self._bucket(bucket).blob(name, generation=generation)

    def _new_blob(self, uri: str) -> Any:
        """Returns an object to write, with the key of the options."""
        bucket, name = _parse(uri)
        return self._bucket(bucket).blob(name, kms_key_name=self._options.get("kms_key_name"))

    def _connected(self) -> Any:
        """Returns the client: one for each process, with room for many connections."""
        if self._client is None:
            self._client = self._connect()
        return self._client

    def _connect(self) -> Any:
        try:
            import google.auth.credentials
            import requests.adapters
            from google.auth import exceptions
            from google.cloud import storage as gcs
        except ModuleNotFoundError as e:
            raise errors.missing_package_of_scheme(e, "gs") from e
        os.environ.setdefault("DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA", "true")  # else every thread asks for it
        project, credentials = self._options.get("project"), self._credentials()
        if account := self._options.get("impersonate"):
            credentials = self._impersonated(credentials, str(account))
        more: dict[str, Any] = {}
        if endpoint := self._options.get("endpoint_url"):
            more["client_options"] = {"api_endpoint": endpoint}
        if project or credentials is not None:  # else the client looks for the project of the default credentials
            more["project"] = project
        try:
            client = gcs.Client(credentials=credentials, **more)
        except exceptions.DefaultCredentialsError:
            # Public buckets need no credentials. Others refuse the request, and `lasting_error` says what is missing.
            self._is_anonymous_for_want_of_credentials = True
            anonymous = google.auth.credentials.AnonymousCredentials()
            client = gcs.Client(credentials=anonymous, **{"project": None, **more})
        adapter = requests.adapters.HTTPAdapter(pool_connections=_CONNECTIONS, pool_maxsize=_CONNECTIONS)
        for scheme in ("https://", "http://"):
            client._http.mount(scheme, adapter)  # as the documentation of google-cloud-storage advises
        return client

    def _impersonated(self, credentials: Any, account: str) -> Any:
        """Returns credentials of a service account, which are asked for with those given, or the default ones."""
        import google.auth
        from google.auth import exceptions, impersonated_credentials

        if credentials is None:
            try:
                credentials, _ = google.auth.default(scopes=[_CLOUD])
            except exceptions.DefaultCredentialsError as e:
                raise errors.ConfigError(
                    "gcs-no-credentials",
                    f"storage_options['impersonate'] is {account!r}, and there are no credentials to ask for it with: "
                    "gcloud auth application-default login, or set GOOGLE_APPLICATION_CREDENTIALS",
                ) from e
        scopes = [_SCOPE + str(self._options.get("access", "full_control"))]
        return impersonated_credentials.Credentials(credentials, account, scopes)

    def _credentials(self) -> Any:
        """Returns the credentials that `token` names; None for Google's default credentials.

        Raises:
            ConfigError: if it names none.
        """
        import google.auth.compute_engine
        import google.auth.credentials
        import google.oauth2.credentials

        token = self._options.get("token")
        if token is None or token == "google_default":
            return None
        if token == "anon":
            return google.auth.credentials.AnonymousCredentials()
        if token == "cloud":
            return google.auth.compute_engine.Credentials()
        if isinstance(token, google.auth.credentials.Credentials):
            return token
        scopes = [_SCOPE + str(self._options.get("access", "full_control"))]
        try:
            if isinstance(token, (str, os.PathLike)) and os.path.exists(token):
                with open(token, encoding="utf-8") as file:
                    token = json.load(file)
            elif isinstance(token, str) and token.startswith("{"):  # the content of {file: KEY.json}
                token = json.loads(token)
            if isinstance(token, Mapping):
                return _credentials_of_key(token, scopes)
        except (OSError, ValueError, KeyError, google.auth.exceptions.GoogleAuthError) as e:
            raise errors.ConfigError(
                "gcs-bad-token",
                f"storage_options['token'] cannot be read as credentials ({type(e).__name__}: {e}); it takes "
                f"{OPTIONS['token']}",
            ) from e
        if isinstance(token, str) and token not in ("cache", "browser"):  # gcsfs's own: a file of its, and a log-in
            return google.oauth2.credentials.Credentials(token)
        raise errors.ConfigError("gcs-bad-token", f"storage_options['token'] is {token!r}; it takes {OPTIONS['token']}")


def _credentials_of_key(key: Mapping[str, Any], scopes: list[str]) -> Any:
    """Returns the credentials of a JSON key: of a service account, of a user who logged in, or of a federation."""
    import google.auth

    kind = key.get("type") or ("service_account" if "private_key" in key else "authorized_user")
    credentials, _ = google.auth.load_credentials_from_dict({**key, "type": kind}, scopes=scopes)
    return credentials


def _bounds(prefix: str, start: str, end: str) -> dict[str, str]:
    """Returns the options of a listing for a range of names below a prefix."""
    bounds = {"start_offset": start, "end_offset": end}
    return {option: f"{prefix}{name}" for option, name in bounds.items() if name}


def _parse_directory(uri: str) -> tuple[str, str]:
    """Returns the bucket, and the beginning that the names of all objects in the directory share."""
    bucket, name = _parse(uri)
    return bucket, f"{name}/" if name else ""


def _parse(uri: str) -> tuple[str, str]:
    """Returns the bucket and the object's name, which is "" for the bucket itself.

    Raises:
        ConfigError: if the address names no bucket.
    """
    bucket, _, name = uri.partition("://")[2].partition("/")
    if not bucket:
        raise errors.ConfigError("address-no-bucket", f"address {uri!r} names no bucket: write gs://BUCKET/FOLDER")
    return bucket, name
