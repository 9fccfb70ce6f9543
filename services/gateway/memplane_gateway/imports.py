"""Takes a whole export back, part by part, and says exactly what became of it."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

import msgspec
from litestar import Response, post
from litestar.background_tasks import BackgroundTask
from litestar.di import NamedDependency
from litestar.openapi.spec import OpenAPIMediaType, Operation, Reference, RequestBody, Schema
from litestar.params import QueryParameter
from litestar.types import ControllerRouterHandler

from memplane_core.contracts.checks import changed_fields, check_policy
from memplane_core.contracts.export import (
    HeaderLine,
    HistoryLine,
    MemoryLine,
    ObservationLine,
    PolicyLine,
    TrailerLine,
)
from memplane_core.contracts.imports import (
    LISTED,
    ImportConflict,
    ImportCounts,
    ImportPartDone,
    ImportPlace,
    ImportResult,
    OnConflict,
)
from memplane_core.contracts.policy import PolicyPatch
from memplane_core.domain.errors import Conflict, Fault, InvalidRequest, MemplaneError, invalid
from memplane_core.domain.tenancy import Principal
from memplane_core.storage import idempotency
from memplane_core.storage.idempotency import Fingerprint
from memplane_core.storage.imports import is_claimed
from memplane_core.storage.policies import change_policy
from memplane_core.storage.session import Connection, Database
from memplane_core.web.problems import problem_of, render
from memplane_core.web.repeats import REPLAYED
from memplane_core.web.request import ServiceRequest
from memplane_gateway.auth import KeyDirectory, presented_secret
from memplane_gateway.deeds import deed_of, tell
from memplane_gateway.documents import NDJSON, answer, problems
from memplane_gateway.export_pieces import ask
from memplane_gateway.forwarding import Forwarder
from memplane_gateway.idempotency import IdempotencyKey
from memplane_gateway.import_body import BodyPart, ImportBody, check_type
from memplane_gateway.queries import refuse_unknown

_PATIENCE_S: Final = 30.0
_AGAIN: Final = "send the whole again to go on, for what is there already is passed over"

OnConflictQuery = Annotated[
    OnConflict,
    QueryParameter(
        description="What becomes of a memory that is there with other content: it stays (`skip`), it is changed to "
        "what the line says (`overwrite`), or the import stops before it (`fail`)."
    ),
]
DryRunQuery = Annotated[bool, QueryParameter(description="Check everything and store nothing.")]
PolicyQuery = Annotated[
    bool, QueryParameter(description="Take over the policy too, once all is stored. Needs the scope `tenant:admin`.")
]


@dataclass
class _Lines(Operation):
    """An operation whose body is lines of JSON, which no parameter of the handler tells."""

    def __post_init__(self) -> None:
        kinds = (HeaderLine, PolicyLine, ObservationLine, MemoryLine, HistoryLine, TrailerLine)
        schema = Schema(one_of=[Reference(f"#/components/schemas/{kind.__name__}") for kind in kinds])
        self.request_body = RequestBody(
            content={NDJSON: OpenAPIMediaType(schema=schema)}, description="The lines of an export.", required=True
        )


@post(
    "/v1/import",
    operation_id="importMemories",
    summary="Import an export",
    tags=["Tenant"],
    status_code=200,
    request_max_body_size=None,
    operation_class=_Lines,
    responses={
        200: answer(ImportResult, "All lines were read, and the trailer says that they are whole."),
        **problems(400, 401, 403, 404, 409, 413, 415, 422, 503, 504),
    },
)
async def import_memories(
    request: ServiceRequest,
    database: NamedDependency[Database],
    *,
    forwarder: NamedDependency[Forwarder],
    directory: NamedDependency[KeyDirectory],
    on_conflict: OnConflictQuery = "skip",
    dry_run: DryRunQuery = False,
    policy: PolicyQuery = False,
    idempotency_key: IdempotencyKey = None,
) -> Response[ImportResult] | Response[bytes]:
    """Store the memories of an export, of any tenant, as they were: ids, times, versions, states, histories.

    What sessions held they hold again.

    The body is read as it is stored, and may be of any length. It may be sent again, as a whole, as often as you like:
    what is there already is left as it is. Where it stops, `stored` says what has been stored by then.

    Needs the scope `memories:admin`.
    """
    principal = request.require("memories:admin")
    if policy:
        request.require("tenant:admin")
    refuse_unknown(request, ("on_conflict", "dry_run", "policy"))
    check_type(request)
    body = ImportBody(request)
    options = f"{on_conflict} {dry_run} {policy}"
    if idempotency_key is not None:
        before = await _answered(principal, database, body, key=idempotency_key, options=options)
        if before is not None:
            return Response(before, headers={REPLAYED: "true"})
    importing = _Import(request, forwarder, directory, on_conflict=on_conflict, dry_run=dry_run)
    if not dry_run:
        await _tell(request, principal, database, phase="begun", counts=None)
    try:
        await importing.take(body)
        if policy and not dry_run and importing.policy is not None:
            await _take_policy(principal, database, importing.policy)
    except MemplaneError as error:
        stopped = importing.stopped(error)
        if not dry_run:
            await _tell(request, principal, database, phase="stopped", counts=importing.counts)
        told = render(problem_of(stopped, request_id=request.request_id), retry_after=stopped.retry_after)
        # Told while the rest is still coming: some clients look up and stop, others look when they have sent it all.
        told.background = BackgroundTask(body.drain)
        return told
    result = ImportResult(
        dry_run=dry_run,
        policy=policy and not dry_run and importing.policy is not None,
        counts=importing.counts,
        conflicts=importing.conflicts,
    )
    if dry_run:
        return Response(result)
    fingerprint = None if idempotency_key is None else _fingerprint(idempotency_key, body, options)
    return await _end(request, principal, database, result, fingerprint=fingerprint)


class _Import:
    """One import, part by part.

    Attributes:
        counts: What has been done.
        conflicts: The first of them.
        policy: That of the file.
    """

    def __init__(
        self,
        request: ServiceRequest,
        forwarder: Forwarder,
        directory: KeyDirectory,
        *,
        on_conflict: OnConflict,
        dry_run: bool,
    ) -> None:
        self._request = request
        self._forwarder = forwarder
        self._directory = directory
        self._secret = presented_secret(request.headers)
        self._query = {"on_conflict": on_conflict, "dry_run": str(dry_run).lower()}
        self._dry_run = dry_run
        self._place = ImportPlace()
        self._trailer: TrailerLine | None = None
        self.counts = ImportCounts()
        self.conflicts: list[ImportConflict] = []
        self.policy: PolicyPatch | None = None

    async def take(self, body: ImportBody) -> None:
        """Store all of it.

        Raises:
            MemplaneError: It had to stop; `stopped` says so with what was stored.
        """
        async for part in body.parts():
            await self._take_part(part)
        self._check_whole(body)

    async def _take_part(self, part: BodyPart) -> None:
        await self._directory.identify(self._secret)
        answered = await ask(
            self._forwarder,
            self._request,
            path="/v1/import/part",
            body=part.body,
            query={**self._query, "place": msgspec.json.encode(self._place).decode()},
            patience_s=_PATIENCE_S,
        )
        done = msgspec.json.decode(answered, type=ImportPartDone)
        self.counts.add(done.counts)
        self.conflicts += done.conflicts[: LISTED - len(self.conflicts)]
        self._place = done.place
        self._trailer = done.trailer or self._trailer
        if done.policy is not None:
            self.policy = _checked(done.policy)
        if done.fault is not None:
            kind = Conflict if done.fault.status == 409 else InvalidRequest
            extra: dict[str, Any] = {} if done.fault.id is None else {"id": done.fault.id}
            raise kind(done.fault.detail, faults=done.fault.errors, **extra)

    def _check_whole(self, body: ImportBody) -> None:
        """Raise InvalidRequest unless there was a trailer, and it tells of just these lines."""
        trailer = self._trailer
        if trailer is None:
            raise invalid(f"/lines/{body.lines + 1}", "a trailer must come last: the body was cut off")
        entries = body.lines - 2 - self.counts.memories - self.counts.held - (self.policy is not None)
        if trailer.sha256 != body.sha256_above_last:
            raise invalid(
                f"/lines/{body.lines}/sha256", "is not that of the lines above: something in them was changed"
            )
        there = (self.counts.memories, entries, self.counts.held)
        if (trailer.memories, trailer.history, trailer.observations) != there:
            raise invalid(f"/lines/{body.lines}/memories", "is not how many there are")

    def stopped(self, error: MemplaneError) -> MemplaneError:
        """The same error, which also says what was stored."""
        counts = self.counts
        done = (
            f"lines 1 to {counts.lines:,} are {'good' if self._dry_run else 'stored'}: {counts.created:,} created,"
            f" {counts.unchanged:,} unchanged, {counts.overwritten:,} overwritten, {counts.conflicts:,} conflicts"
            if counts.lines
            else "nothing was stored"
        )
        detail = f"{error.detail}; {done}; {_AGAIN}"
        extra = {**error.extra, "stored": counts}
        return type(error)(detail, faults=error.faults, retry_after=error.retry_after, **extra)


def _checked(policy: PolicyPatch) -> PolicyPatch:
    try:
        check_policy(policy)
    except InvalidRequest as error:
        faults = [Fault(f"/lines/2/policy{fault.pointer}", fault.detail) for fault in error.faults]
        raise InvalidRequest(error.detail, faults=faults) from None
    return policy


async def _take_policy(principal: Principal, database: Database, policy: PolicyPatch) -> None:
    changes = {name: msgspec.to_builtins(value) for name, value in changed_fields(policy).items()}
    if changes.get("preset") is not None:
        changes["weights"] = None  # which are the defaults' beside a preset
    async with database.tenant(principal.tenant) as connection:
        await change_policy(principal.tenant, connection, changes=changes)


def _fingerprint(key: str, body: ImportBody, options: str) -> Fingerprint:
    return Fingerprint(key, "POST /v1/import", hashlib.sha256(options.encode() + body.digest).digest())


async def _answered(
    principal: Principal, database: Database, body: ImportBody, *, key: str, options: str
) -> ImportResult | None:
    """What a request of this Idempotency-Key was answered; its body is read for that alone. None for the first one.

    Raises:
        IdempotencyMismatch: That one had another body, or other parameters.
    """
    async with database.tenant(principal.tenant) as connection:
        if not await is_claimed(principal.tenant, connection, key):
            return None
    await body.rest()
    async with database.tenant(principal.tenant) as connection:
        return await idempotency.recall(
            principal.tenant, connection, _fingerprint(key, body, options), kind=ImportResult
        )


async def _end(
    request: ServiceRequest,
    principal: Principal,
    database: Database,
    result: ImportResult,
    *,
    fingerprint: Fingerprint | None,
) -> Response[ImportResult]:
    """Tell the audit, and remember the answer for those who repeat the request."""
    tenant = principal.tenant
    async with database.tenant(tenant) as connection:
        if fingerprint is not None:
            before = await idempotency.claim(tenant, connection, fingerprint, kind=ImportResult)
            if before is not None:
                return Response(before, headers={REPLAYED: "true"})
            await idempotency.settle(tenant, connection, fingerprint, outcome=result)
        await _tell_in(request, principal, connection, phase="done", counts=result.counts)
    return Response(result)


async def _tell(
    request: ServiceRequest, principal: Principal, database: Database, *, phase: str, counts: ImportCounts | None
) -> None:
    async with database.tenant(principal.tenant) as connection:
        await _tell_in(request, principal, connection, phase=phase, counts=counts)


async def _tell_in(
    request: ServiceRequest, principal: Principal, connection: Connection, *, phase: str, counts: ImportCounts | None
) -> None:
    details = {"phase": phase, **(msgspec.structs.asdict(counts) if counts else {})}
    tenant = principal.tenant
    await tell(connection, deed_of(request.scope), tenant=tenant, target=str(tenant), details=details)


IMPORT_ROUTES: Final[Sequence[ControllerRouterHandler]] = (import_memories,)
