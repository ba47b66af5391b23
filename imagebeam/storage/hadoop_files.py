"""Files that Hadoop's programs share: token files, and hdfs-site.xml."""

from __future__ import annotations

import base64
import io
import os
import pathlib
import socket
from collections.abc import Sequence
from typing import BinaryIO, NamedTuple
from xml.etree import ElementTree

from imagebeam import errors

_MAGIC = b"HDTS"
_KINDS = ("HDFS_DELEGATION_TOKEN", "WEBHDFS delegation", "SWEBHDFS delegation")


class _Token(NamedTuple):
    service: str  # HOST:PORT of the NameNode, or the name of a nameservice
    text: str  # as WebHDFS takes it


def read_token(path: str, services: Sequence[str]) -> str | None:
    """Returns the delegation token of a file for one of the services, as WebHDFS takes it.

    Args:
        path: of a token file of Hadoop, as `hdfs fetchdt` writes it and YARN gives it to each container; or of a text
            file that holds the token alone.
        services: hosts of the cluster, or the name of its nameservice.

    Returns:
        None if a token file of Hadoop has no token of HDFS.

    Raises:
        ConfigError: if the file cannot be read, or has tokens of several other clusters.
    """
    try:
        data = pathlib.Path(path).read_bytes()
        if not data.strip():
            raise ValueError("it is empty")
        if not data.startswith(_MAGIC):
            return data.decode().strip()
        tokens = _parse(data)
    except (OSError, ValueError) as e:
        reason = e.strerror if isinstance(e, OSError) else e
        raise errors.ConfigError(
            "hdfs-token-file",
            f"{path}: no tokens can be read ({reason}); write the file with `hdfs fetchdt --webservice "
            "http://NAMENODE:9870 FILE` or `hadoop dtutil get -format java`",
        ) from e
    known = {name for each in services for name in (each, *_addresses_of(each))}
    fitting = [each for each in tokens if known & {each.service, each.service.rpartition(":")[0]}]
    if not fitting and len({each.service for each in tokens}) > 1:
        raise errors.ConfigError(
            "hdfs-token-file",
            f"{path} has tokens for {', '.join(sorted(each.service for each in tokens))}, and none for "
            f"{', '.join(services)}: name the hosts as they are in the file, or give a file with one token",
        )
    return next((each.text for each in fitting or tokens), None)


def _addresses_of(host: str) -> list[str]:
    """Returns the IP addresses of a host: tokens of Hadoop name these."""
    try:
        return [str(found[4][0]) for found in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]
    except OSError:
        return []


def _parse(data: bytes) -> list[_Token]:
    """Returns the tokens of HDFS in a token file.

    Source: org.apache.hadoop.security.Credentials, SerializedFormat.WRITABLE; Token; io.WritableUtils.

    Raises:
        ValueError: if the file has another format, or is cut short.
    """
    file = io.BytesIO(data)
    if file.read(5) != _MAGIC + b"\0":
        raise ValueError("it is in the format of protobuf")
    tokens = []
    for _ in range(_read_number(file)):
        _read_bytes(file)  # a name, which is the service in most files
        start = file.tell()
        _read_bytes(file)  # identifier
        _read_bytes(file)  # password
        kind, service = _read_bytes(file).decode(), _read_bytes(file).decode()
        text = base64.urlsafe_b64encode(data[start : file.tell()]).rstrip(b"=").decode()
        if kind in _KINDS:
            tokens.append(_Token(service.removeprefix("ha-hdfs:"), text))
    return tokens


def _read_bytes(file: BinaryIO) -> bytes:
    length = _read_number(file)
    found = file.read(length)
    if len(found) != length:
        raise ValueError("it is cut short")
    return found


def _read_number(file: BinaryIO) -> int:
    """Reads a number that is not negative: one byte below 113, or 112 and their number less, in two's complement."""
    first = int.from_bytes(file.read(1), "big", signed=True)
    return first if first >= 0 else int.from_bytes(file.read(-112 - first), "big")


def find_name_nodes(name: str, is_secure: bool) -> list[str]:
    """Returns the addresses of the NameNodes of a nameservice, http://HOST:PORT or https://HOST:PORT.

    Returns:
        Those in $HADOOP_CONF_DIR/hdfs-site.xml; [] if there is no such file, or it does not have the name.

    Raises:
        ConfigError: if the file cannot be read, or lacks the address of a NameNode.
    """
    folder = os.environ.get("HADOOP_CONF_DIR")
    path = pathlib.Path(folder or "", "hdfs-site.xml")
    if not folder or not path.is_file():
        return []
    try:
        properties = {
            (each.findtext("name") or "").strip(): (each.findtext("value") or "").strip()
            for each in ElementTree.parse(path).iter("property")
        }
    except (OSError, ElementTree.ParseError) as e:
        raise errors.ConfigError("hdfs-site-unreadable", f"{path} cannot be read ({e}): correct it") from e
    kind = "https" if is_secure or properties.get("dfs.http.policy") == "HTTPS_ONLY" else "http"
    nodes = [each.strip() for each in properties.get(f"dfs.ha.namenodes.{name}", "").split(",") if each.strip()]
    found = {node: properties.get(f"dfs.namenode.{kind}-address.{name}.{node}") for node in nodes}
    for node, address in found.items():
        if not address:
            raise errors.ConfigError(
                "hdfs-site-unreadable",
                f"{path} has no dfs.namenode.{kind}-address.{name}.{node}: add it, or write "
                "hdfs://NAMENODE:9870,NAMENODE:9870/FOLDER",
            )
    return [f"{kind}://{address}" for address in found.values()]
