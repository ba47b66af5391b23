from __future__ import annotations

import io

from hypothesis import given, settings
from hypothesis import strategies as st

from imagebeam.storage import remote

CONTENT = bytes(range(100))


class Reader(remote.SeekableReader):
    """Returns at most 7 bytes at a time."""

    def _read_at(self, position: int, length: int) -> bytes:
        assert 0 <= position < len(CONTENT)
        return CONTENT[position : position + min(length, 7)]


steps = st.lists(
    st.one_of(
        st.tuples(st.just("read"), st.integers(-1, 150)),
        st.tuples(st.just("seek"), st.integers(0, 150)),
        st.tuples(st.just("skip"), st.integers(0, 150)),
        st.tuples(st.just("from-end"), st.integers(-100, 50)),
    )
)


@settings(deadline=None)
@given(steps=steps, buffer_bytes=st.integers(1, 64))
def test_reader_behaves_like_a_file_in_memory(steps: list[tuple[str, int]], buffer_bytes: int) -> None:
    expected, found = io.BytesIO(CONTENT), io.BufferedReader(Reader(len(CONTENT)), buffer_bytes)
    for step, value in steps:
        if step == "read":
            assert found.read(value) == expected.read(value)
        else:
            whence = {"seek": io.SEEK_SET, "skip": io.SEEK_CUR, "from-end": io.SEEK_END}[step]
            assert found.seek(value, whence) == expected.seek(value, whence)
        assert found.tell() == expected.tell()


def test_seek_before_the_start_goes_to_the_start() -> None:
    reader = Reader(len(CONTENT))
    assert reader.seek(-200, io.SEEK_END) == 0
    assert (reader.readable(), reader.seekable()) == (True, True)
