"""A Hadoop file system with Kerberos, TLS and two NameNodes on this machine for tests: secure_hdfs/."""

from __future__ import annotations

import contextlib
import ctypes
import datetime
import ipaddress
import pathlib
from collections.abc import Iterator

import pytest

from tests.servers import java_programs

_SOURCE = pathlib.Path(__file__).parent / "secure_hdfs"
TICKET_SEC = 10  # lifetime of a ticket


class Cluster:
    """Two NameNodes, of which one is active, and a DataNode.

    Attributes:
        http_nodes, https_nodes: HOST:PORT of the NameNodes' WebHDFS.
        authority: file with the certificate of the authority of all servers.
        environment: variables with which Kerberos finds the KDC. They name a ticket cache, which is empty, and no keys.
        keytab: file with the keys of the user beam.
    """

    def __init__(self, program: java_programs.Program, folder: pathlib.Path, authority: pathlib.Path):
        self._program = program
        self.http_nodes = [f"localhost:{port}" for port in program.started["http_ports"]]
        self.https_nodes = [f"localhost:{port}" for port in program.started["https_ports"]]
        self.authority = authority
        self.keytab: str = program.started["keytab"]
        settings = pathlib.Path(program.started["krb5_conf"]).read_text()
        for_tests = f"dns_canonicalize_hostname = false\n rdns = false\n ticket_lifetime = {TICKET_SEC}s"
        config = folder / "client-krb5.conf"
        config.write_text(settings.replace("[libdefaults]", f"[libdefaults]\n {for_tests}"))
        self.environment = {"KRB5_CONFIG": str(config), "KRB5CCNAME": f"FILE:{folder / 'tickets'}"}

    def fail_over(self) -> None:
        """Makes the NameNode in standby the active one."""
        self._program.ask("fail over")

    def kill(self) -> None:
        """Ends the active NameNode; the other one becomes active."""
        self._program.ask("kill")

    def start(self) -> None:
        """Starts the NameNode that was killed, in standby."""
        self._program.ask("start")

    def write_token(self, path: pathlib.Path) -> None:
        """Writes a delegation token of the user beam into a file, as Hadoop does."""
        self._program.ask(f"token {path}")

    def cancel_token(self, path: pathlib.Path) -> None:
        """Makes the token in a file invalid."""
        self._program.ask(f"cancel {path}")


@contextlib.contextmanager
def run(folder: pathlib.Path) -> Iterator[Cluster]:
    """Runs a cluster that keeps its files in `folder`. Skips the test where a program or a library is missing."""
    try:
        ctypes.CDLL("libgssapi_krb5.so.2")
    except OSError:
        pytest.skip("secure_hdfs needs MIT Kerberos, and there is none here: apt-get install libgssapi-krb5-2")
    (folder / "kdc").mkdir()
    authority, store = _write_certificates(folder)
    with java_programs.run(_SOURCE, "SecureHdfs", folder, store) as program:
        yield Cluster(program, folder, authority)


def _write_certificates(folder: pathlib.Path) -> tuple[pathlib.Path, pathlib.Path]:
    """Writes the certificate of a new authority, and a store with one of localhost and its key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import pkcs12

    now = datetime.datetime.now(datetime.timezone.utc)

    def certify(
        name: str, key: ec.EllipticCurvePrivateKey, issuer: str, issuer_key: ec.EllipticCurvePrivateKey
    ) -> x509.Certificate:
        names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        builder = x509.CertificateBuilder(
            x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, issuer)]),
            x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]),
            key.public_key(),
            x509.random_serial_number(),
            now - datetime.timedelta(days=1),
            now + datetime.timedelta(days=1),
        )
        is_authority = name == issuer
        usage = dict.fromkeys(("content_commitment", "key_encipherment", "data_encipherment", "key_agreement"), False)
        usage |= {"digital_signature": not is_authority, "key_cert_sign": is_authority, "crl_sign": is_authority}
        return (
            builder.add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
            .add_extension(x509.KeyUsage(**usage, encipher_only=False, decipher_only=False), critical=True)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
            .sign(issuer_key, hashes.SHA256())
        )

    keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(2)]
    authority = certify("authority", keys[0], "authority", keys[0])
    server = certify("localhost", keys[1], "authority", keys[0])
    files = folder / "authority.pem", folder / "servers.p12"
    files[0].write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    password = serialization.BestAvailableEncryption(b"secret")
    files[1].write_bytes(pkcs12.serialize_key_and_certificates(b"server", keys[1], server, [authority], password))
    return files
