from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memplane_core.domain.errors import InvalidRequest, MalformedRequest
from memplane_core.web.bodies import decode_json


class Inner(msgspec.Struct, forbid_unknown_fields=True):
    n: int = 0


class Body(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    ratio: float = 0.0
    items: list[Inner] = []
    free: dict[str, Any] = {}


@pytest.mark.parametrize(
    ("raw", "pointer"),
    [
        (b"{}", "/name"),
        (b'{"name": 1}', "/name"),
        (b'{"name": "a", "items": [{"n": 1}, {"n": "2"}]}', "/items/1/n"),
        (b'{"name": "a", "items": [{"m": 1}]}', "/items/0/m"),
        (b'{"name": "a", "a/b~c": 1}', "/a~1b~0c"),
        (b'{"name": "a", "ratio": NaN}', "/ratio"),
        (b'{"name": "a", "ratio": 1e999}', "/ratio"),
        (b'{"name": "a", "free": {"x": [1, {"y": Infinity}]}}', "/free/x/1/y"),
        (b'{"name": "\\ud800"}', "/name"),
        (b'{"name": "a", "free": {"\\udc00": 1}}', "/free/?"),
        (b"  ", ""),
        (b"[]", ""),
    ],
)
def test_an_error_points_at_the_field(raw: bytes, pointer: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode_json(raw, Body)
    assert [fault.pointer for fault in caught.value.faults] == [pointer]


@pytest.mark.parametrize(
    "raw", [b"{", b"{'name': 'a'}", b"\xff", b'{"name": "a"} {}', b'{"name": "a", "free": {"x": ' + b"[" * 100_000]
)
def test_what_is_no_json_is_malformed(raw: bytes) -> None:
    with pytest.raises(MalformedRequest):
        decode_json(raw, Body)


@given(st.binary(max_size=200) | st.text(max_size=100).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_any_bytes_are_read_or_refused(raw: bytes) -> None:
    try:
        assert isinstance(decode_json(raw, Body), Body)
    except (InvalidRequest, MalformedRequest) as error:
        msgspec.json.encode([error.detail, *error.faults])  # or telling of it would fail in turn
