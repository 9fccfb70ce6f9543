"""What a search, a context and a why have in common: one check, and one search behind it."""

from typing import Any
from uuid import UUID

import msgspec
import pytest

from memplane_core.contracts.checks import check_recall
from memplane_core.contracts.context import ContextRequest
from memplane_core.contracts.memories import RecallFields, SearchRequest, SessionRef
from memplane_core.contracts.why import WhyRequest
from memplane_core.domain.errors import InvalidRequest

MEMORY = "01990000-0000-7000-8000-000000000001"
NOTHING = {"match": 0, "recency": 0, "importance": 0, "priority": 0}


def asked(kind: type[RecallFields], fields: dict[str, Any]) -> RecallFields:
    named = {"memory_id": MEMORY} if kind is WhyRequest else {}
    return msgspec.convert({"query": "where are the keys?", **named, **fields}, kind)


@pytest.mark.parametrize("kind", [SearchRequest, ContextRequest, WhyRequest])
@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({"query": "keys\0"}, "/query"),
        ({"query": "é" * 5000}, "/query"),
        ({"filters": {"shelf": 1}}, "/filters/shelf"),
        ({"now": 1e30}, "/now"),
        ({"valid_at": "some day"}, "/valid_at"),
        ({"weights": NOTHING}, "/weights"),
        ({"weights": {}, "preset": "dbgpt"}, "/preset"),
        ({"include_short_term": {"session_id": "é" * 200}}, "/include_short_term/session_id"),
    ],
)
def test_no_request_asks_what_no_search_can_answer(
    kind: type[RecallFields], fields: dict[str, Any], pointer: str
) -> None:
    check_recall(asked(kind, {}))
    with pytest.raises(InvalidRequest) as refused:
        check_recall(asked(kind, fields))
    assert [fault.pointer for fault in refused.value.faults] == [pointer]


def test_the_search_behind_a_request_leaves_no_trace_and_asks_for_no_session() -> None:
    session = SessionRef(session_id="s")
    context = ContextRequest(query="keys", rerank=True, max_tokens=9, include_short_term=session)
    assert context.as_search() == SearchRequest(query="keys", top_k=50, rerank=True, touch=False)
    why = WhyRequest(query="keys", memory_id=UUID(MEMORY), candidates=30, filters={"user_id": "ana"})
    assert why.as_search() == SearchRequest(query="keys", candidates=30, filters={"user_id": "ana"}, touch=False)
