"""Lines to import, made by hand, and what is answered to them."""

import hashlib
import json
from collections.abc import Iterable
from typing import Any
from uuid import uuid4

import httpx2
import uuid_utils.compat
from tests.integration.transfer.conftest import as_line

NDJSON = {"Content-Type": "application/x-ndjson"}


async def send(client: httpx2.AsyncClient, body: bytes, *, key: str | None = None, **query: Any) -> httpx2.Response:
    headers = NDJSON | ({"Idempotency-Key": key} if key else {})
    return await client.post("/v1/import", content=body, params=query, headers=headers)


def counts(answer: httpx2.Response) -> dict[str, int]:
    """What was done, leaving out what is 0."""
    body = answer.json()
    found = body["counts"] if answer.status_code == 200 else body["stored"]
    return {name: count for name, count in found.items() if count and name != "lines"}


def whole(lines: Iterable[bytes]) -> bytes:
    """These lines with a trailer that is right of them."""
    lines = list(lines)
    kinds = [json.loads(line)["kind"] for line in lines]
    memories, history = kinds.count("memory"), kinds.count("history")
    trailer: dict[str, Any] = {
        "kind": "trailer",
        "memories": memories,
        "history": history,
        "observations": kinds.count("observation"),
        "states": {},
    }
    digest = hashlib.sha256(b"".join(lines)).hexdigest()
    return b"".join(lines) + as_line({**trailer, "records_sha256": digest, "sha256": digest})


def header(**fields: Any) -> bytes:
    given: dict[str, Any] = {
        "kind": "header",
        "format": "memplane-export",
        "version": 1,
        "tenant": {"id": str(uuid4()), "name": "elsewhere"},
        "exported_at": "2026-05-08T13:56:00Z",
        "model": "any",
        "dim": 3,
        "where": None,
        "history": True,
        "after": None,
    }
    return as_line(given | fields)


def memory(**fields: Any) -> dict[str, Any]:
    at = "2026-05-08T13:56:00.123456Z"
    given: dict[str, Any] = {
        "kind": "memory",
        "id": str(uuid_utils.compat.uuid7()),
        "external_id": None,
        "content": f"something {uuid4()}",
        "actor": None,
        "scene": [],
        "source": None,
        "memory_type": "experience",
        "user_id": None,
        "agent_id": None,
        "session_id": None,
        "importance": 0.5,
        "priority": 3,
        "pinned": False,
        "metadata": {},
        "occurred_at": at,
        "occurred_given": False,
        "distinct": False,
        "expires_at": None,
        "created_at": at,
        "updated_at": at,
        "last_accessed_at": at,
        "access_count": 0,
        "helpful": 0,
        "not_helpful": 0,
        "priority_moved_at": None,
        "unscored": False,
        "version": 1,
        "state": "active",
        "merged_into": None,
        "purge_at": None,
        "merges": None,
        "valid_from": None,
        "valid_to": None,
        "superseded_by": None,
    }
    return given | fields


def entry(of: dict[str, Any], version: int = 1, **fields: Any) -> dict[str, Any]:
    given: dict[str, Any] = {
        "kind": "history",
        "memory_id": of["id"],
        "version": version,
        "event": "created",
        "key_id": "k",
        "request_id": "r",
        "at": "2026-05-08T13:56:00.123456Z",
        "changes": {},
    }
    return given | fields
