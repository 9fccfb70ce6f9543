"""Keys that an object has twice."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memplane_core.domain.errors import InvalidRequest, MalformedRequest
from memplane_core.web.bodies import refuse_repeated_keys

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(VALUES)
def test_what_has_each_key_once_passes(value: object) -> None:
    refuse_repeated_keys(msgspec.json.encode(value))


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        (b'{"a":1,"a":1}', "/a"),
        (b'{"a" :1, "\\u0061"\n:1}', "/a"),
        (b'{"":1,"":2}', "/"),
        (b'[{"a":[{"b~/c":{},"b~/c":{}}]}]', "/0/a/0/b~0~1c"),
        (b'{"x":"\\":","y":{"k":1,"k":2}}', "/y/k"),
    ],
)
def test_the_second_one_is_pointed_at(body: bytes, pointer: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        refuse_repeated_keys(body)
    assert [fault.pointer for fault in caught.value.faults] == [pointer]


def test_nesting_ends_in_a_refusal() -> None:
    with pytest.raises(MalformedRequest):
        refuse_repeated_keys(b"[" * 100_000 + b"]" * 100_000)
