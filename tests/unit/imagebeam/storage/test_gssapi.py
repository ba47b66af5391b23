"""Kerberos logins that fail, by the system's library, without a KDC."""

from __future__ import annotations

import ctypes
import pathlib
import socket
import struct
import sys
import threading

import pytest

from imagebeam.storage import gssapi
from tests import case_tables, error_texts, patience

USER, REALM = "me", "EXAMPLE.COM"


@pytest.fixture
def kdc(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> socket.socket:
    """A socket that is the KDC for this process, without a ticket or a key. Nobody listens there."""
    try:
        ctypes.CDLL("libgssapi_krb5.so.2")
    except OSError:
        pytest.skip("MIT Kerberos is not installed: apt-get install libgssapi-krb5-2")
    found = socket.socket()
    found.bind(("127.0.0.1", 0))
    (tmp_path / "krb5.conf").write_text(
        f"[libdefaults]\n default_realm = {REALM}\n dns_canonicalize_hostname = false\n udp_preference_limit = 1\n"
        f"[realms]\n {REALM} = {{\n  kdc = 127.0.0.1:{found.getsockname()[1]}\n }}\n"
    )
    monkeypatch.setenv("KRB5_CONFIG", str(tmp_path / "krb5.conf"))
    monkeypatch.setenv("KRB5CCNAME", f"FILE:{tmp_path / 'tickets'}")
    monkeypatch.delenv("KRB5_CLIENT_KTNAME", raising=False)
    return found


def keytab() -> bytes:
    """A file with a key of the user. Source: MIT Kerberos, "The Kerberos keytab binary file format", version 2."""

    def text(data: bytes) -> bytes:
        return struct.pack(">H", len(data)) + data

    names = struct.pack(">H", 1) + text(REALM.encode()) + text(USER.encode())
    entry = names + struct.pack(">IIBH", 1, 0, 1, 18) + text(bytes(32))  # kind of name, time, version, AES-256
    return b"\5\2" + struct.pack(">i", len(entry)) + entry


def test_keytab_without_a_key_of_the_user_is_refused_by_name(
    kdc: socket.socket, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with kdc:
        for data, principal in [(None, None), (b"", None), (b"no keytab", f"you@{REALM}"), (keytab(), f"you@{REALM}")]:
            path = tmp_path / "me.keytab"
            if data is not None:
                path.write_bytes(data)
            with case_tables.named((data, principal)), error_texts.raises("kerberos-keytab") as caught:
                gssapi.Login("localhost", principal, str(path))
            assert str(path) in str(caught.value) and (principal or "") in str(caught.value)
        monkeypatch.setenv("KRB5_CLIENT_KTNAME", str(tmp_path / "none.keytab"))
        with error_texts.raises("kerberos-keytab"):
            gssapi.Login("localhost")
        monkeypatch.setenv("KRB5_CLIENT_KTNAME", str(path))
        with pytest.raises(gssapi.LoginError, match=f"by the keys in '{path}' .*Cannot contact any KDC for realm"):
            gssapi.Login("localhost")
        monkeypatch.delenv("KRB5_CLIENT_KTNAME")
        with pytest.raises(gssapi.LoginError, match=r"default cache: FILE:.*: run kinit, or give a keytab"):
            gssapi.Login("localhost")


def test_threads_that_wait_for_a_silent_kdc_share_its_failure(kdc: socket.socket, tmp_path: pathlib.Path) -> None:
    (tmp_path / "me.keytab").write_bytes(keytab())
    found: list[gssapi.LoginError] = []

    def log_in() -> None:
        with pytest.raises(gssapi.LoginError) as caught:
            gssapi.Login("localhost", None, str(tmp_path / "me.keytab"))
        found.append(caught.value)

    def is_waiting(thread: threading.Thread) -> bool:
        frame = sys._current_frames().get(thread.ident or 0)
        return frame is not None and frame.f_code is gssapi.Login.__init__.__code__

    threads = [threading.Thread(target=log_in, daemon=True) for _ in range(4)]
    with kdc:
        kdc.listen()
        threads[0].start()
        connection, _ = kdc.accept()
        for thread in threads[1:]:
            thread.start()
        patience.wait_until(lambda: all(is_waiting(each) for each in threads[1:]))
    connection.close()
    for thread in threads:
        thread.join()
    assert len({str(each) for each in found}) == 1, found
    assert [each.__cause__ is not None for each in found].count(True) == 1  # only one of the four has asked
