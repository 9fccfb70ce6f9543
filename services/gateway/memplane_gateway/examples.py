"""Examples in the OpenAPI document. A test reads each as the type that it is an example of."""

from typing import Any, Final

_ID: Final = "01990000-0000-7000-8000-000000000001"
_OTHER: Final = "01990000-0000-7000-8000-000000000002"
_AT: Final = "2026-05-08T13:56:00Z"

_MEMORY: Final[dict[str, Any]] = {
    "id": _ID,
    "external_id": None,
    "content": "I moved from Oslo to Lisbon in March.",
    "actor": "Ana",
    "scene": ["smalltalk"],
    "source": "chat",
    "memory_type": "experience",
    "user_id": "ana",
    "agent_id": "concierge",
    "session_id": "2026-05-08",
    "importance": 0.7,
    "priority": 3,
    "pinned": False,
    "metadata": {"lang": "en"},
    "occurred_at": _AT,
    "expires_at": None,
    "valid_from": None,
    "valid_to": None,
    "superseded_by": None,
    "created_at": _AT,
    "updated_at": _AT,
    "last_accessed_at": _AT,
    "access_count": 0,
    "version": 1,
    "state": "active",
    "merged_into": None,
    "purge_at": None,
    "index_state": "pending",
    "index_error": None,
}

_KEY: Final[dict[str, Any]] = {"name": "app", "scopes": ["memories:read", "memories:write"]}
_ROTATION: Final[dict[str, Any]] = {"overlap_s": 3600}
_POLICY: Final[dict[str, Any]] = {"default_importance": 0.4, "require_user": False}
_RATE: Final[dict[str, Any]] = {"requests": 100, "seconds": 1}

REQUESTS: Final[dict[str, dict[str, Any]]] = {
    "writeMemory": {
        "content": "I moved from Oslo to Lisbon in March.",
        "actor": "Ana",
        "user_id": "ana",
        "agent_id": "concierge",
        "session_id": "2026-05-08",
        "scene": ["smalltalk"],
        "source": "chat",
        "importance": 0.7,
        "metadata": {"lang": "en"},
        "occurred_at": _AT,
    },
    "writeMemories": {
        "memories": [
            {"content": "I moved from Oslo to Lisbon in March.", "actor": "Ana", "user_id": "ana"},
            {"content": "Window seats only, please.", "actor": "Ana", "user_id": "ana", "priority": 4},
        ]
    },
    "observe": {
        "content": "Ana asks for a table by the window.",
        "actor": "Ana",
        "user_id": "ana",
        "agent_id": "concierge",
        "session_id": "2026-05-08",
        "importance": 0.6,
        "occurred_at": _AT,
    },
    "observeMany": {
        "user_id": "ana",
        "agent_id": "concierge",
        "session_id": "2026-05-08",
        "observations": [
            {"content": "Ana asks for a table by the window.", "actor": "Ana"},
            {"content": "There is one free at eight.", "importance": 0.4},
        ],
    },
    "endSession": {"user_id": "ana", "agent_id": "concierge", "session_id": "2026-05-08"},
    "searchMemories": {
        "query": "Where does Ana live?",
        "top_k": 5,
        "filters": {"user_id": "ana", "priority": {"gte": 3}},
    },
    "whyNotRecalled": {"memory_id": _ID, "query": "Where does Ana live?", "top_k": 5, "filters": {"user_id": "ana"}},
    "packContext": {
        "query": "Where should I book a table for Ana?",
        "max_tokens": 500,
        "filters": {"user_id": "ana"},
        "template": {"header": "", "group": "## $group", "memory": "[$n] $date $who$content"},
    },
    "listMatchingMemories": {
        "filters": {
            "user_id": "ana",
            "scene": ["smalltalk"],
            "metadata.lang": {"in": ["en", "pt"]},
            "OR": [{"importance": {"gt": 0.5}}, {"pinned": True}],
            "NOT": {"source": "import"},
        },
        "sort": "-occurred_at",
        "limit": 50,
    },
    "forgetMemories": {"filters": {"user_id": "ana", "scene": ["smalltalk"]}, "dry_run": True},
    "mergeMemories": {"ids": [_ID, _OTHER], "survivor": _ID},
    "undoMerge": {"survivor": _ID},
    "giveFeedback": {"value": "helpful"},
    "updateMemory": {"importance": 0.9, "pinned": True},
    "startJob": {"kind": "reindex", "model": "multilingual-e5-small"},
    "startTenantJob": {"kind": "reindex", "model": "multilingual-e5-small"},
    "startErasure": {"user_id": "bert"},
    "activateGeneration": {"grace_s": 604800},
    "createTenant": {"name": "acme"},
    "createKey": _KEY,
    "createOwnKey": _KEY,
    "rotateKey": _ROTATION,
    "rotateOwnKey": _ROTATION,
    "updatePolicy": _POLICY,
    "updateTenantPolicy": _POLICY,
    "setTenantLimits": {"search": _RATE, "stored_memories": 1_000_000, "tokens_a_day": "unlimited"},
    "updateTenantLimits": {"stored_memories": 2_000_000},
    "setKeyLimits": {"write": _RATE, "batch_items": 100},
    "updateKeyLimits": {"batch_items": None},
}
"""Request bodies by operation id."""

ANSWERS: Final[dict[str, dict[str, dict[str, Any]]]] = {
    "writeMemory": {"201": {**_MEMORY, "deduplicated": False}},
    "writeMemories": {
        "200": {
            "results": [
                {"status": 201, "id": _ID, "version": 1, "deduplicated": False, "index_state": "pending"},
                {
                    "status": 201,
                    "id": "01990000-0000-7000-8000-000000000002",
                    "version": 1,
                    "deduplicated": False,
                    "index_state": "pending",
                },
            ]
        }
    },
    "searchMemories": {"200": {"results": [{**_MEMORY, "score": 0.91, "relevance": 0.74}], "degraded": []}},
    "whyNotRecalled": {
        "200": {
            "outcome": "rank",
            "unmatched": [],
            "rank": 12,
            "pool": 200,
            "top_k": 5,
            "score": 0.41,
            "relevance": 0.22,
            "explain": None,
            "least_score": 0.66,
            "min_relevance": 0.0,
            "index_state": "indexed",
            "degraded": [],
        }
    },
    "packContext": {
        "200": {
            "text": "## experience\n[1] 2026-05-08 Ana: I moved from Oslo to Lisbon in March.",
            "tokens": 38,
            "counter": "estimate",
            "items": [
                {
                    "n": 1,
                    "id": _ID,
                    "kind": "memory",
                    "truncated": False,
                    "occurred_at": _AT,
                    "score": 0.91,
                    "relevance": 0.74,
                }
            ],
            "left_out": 0,
            "degraded": [],
        }
    },
    "listMatchingMemories": {"200": {"results": [_MEMORY], "next_cursor": None}},
}
"""Response bodies by operation id and status."""
