"""Bodies of the erasure routes."""

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

import msgspec

SubjectKind = Literal["user", "agent", "pair", "tenant"]
"""What is erased: all of a user, all of an agent, what is both one's user and the other's agent, or a tenant."""

ErasureState = Literal["running", "done", "failed"]

EntityId = Annotated[str, msgspec.Meta(min_length=1)]


class ErasureStart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whom to erase. With both, only what is that user's and that agent's.

    Attributes:
        user_id: All memories of this user, and what cites them.
        agent_id: Likewise of this agent.
    """

    user_id: EntityId | None = None
    agent_id: EntityId | None = None


class ErasureReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """What an erasure did. It holds no content, and its subject as an HMAC alone.

    Attributes:
        erasure_id: Of the erasure.
        tenant_id: Whose it was.
        kind: What was erased.
        subject: `hmac-sha256:` and the HMAC of who was erased, under a secret of the installation.
        erased: How much went, by where it was. `index_rows_g1` are rows of the vector index in generation 1.
        passes: How often everything was looked through. The last pass found nothing, or what had come too late.
        requested_at: From this moment on writes about the subject were refused, until `finished_at`.
        remains: What is out of reach of every request, and physically there until something else drops it, by store.
    """

    erasure_id: UUID
    tenant_id: UUID
    kind: SubjectKind
    subject: str
    erased: dict[str, int]
    passes: int
    requested_at: datetime
    started_at: datetime
    finished_at: datetime
    remains: dict[str, str]


class ErasureView(msgspec.Struct, frozen=True, kw_only=True):
    """An erasure as it is now.

    Attributes:
        state: `running` refuses writes about the subject; `failed` means that something is left: ask again.
        kind: What is erased.
        subject: As in the receipt; the subject itself is never told.
        phase: What is being looked through just now.
        pass_number: The second pass takes what came while the first was under way.
        erased: How much is gone so far, by where it was.
        error: Why it failed, or what holds it up just now.
        started_by: Public id of the key that asked for it, or `admin`.
        receipt: Once it is done.
        receipt_sha256: Hex SHA-256 of the receipt as JSON in UTF-8, keys sorted, without spaces.
    """

    id: UUID
    state: ErasureState
    kind: SubjectKind
    subject: str
    phase: str
    pass_number: int
    erased: dict[str, int]
    error: str | None
    started_by: str
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    receipt: ErasureReceipt | None
    receipt_sha256: str | None


class ErasurePage(msgspec.Struct, frozen=True, kw_only=True):
    """Erasures, the newest first."""

    results: list[ErasureView]
    next_cursor: str | None
