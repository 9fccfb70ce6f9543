"""Holds each request to the limits of its tenant and its key, before its body is read."""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, cast

import msgspec
from cachetools import LRUCache
from litestar.datastructures import Headers, MutableScopeHeaders
from litestar.enums import ScopeType
from litestar.middleware import ASGIMiddleware
from litestar.types import ASGIApp, HTTPScope, Message, Receive, Scope, Send

from memplane_core.contracts.limits import EffectiveLimits
from memplane_core.domain.errors import Forbidden, PayloadTooLarge, RateLimited, Unavailable, invalid
from memplane_core.domain.tenancy import Principal, TenantId
from memplane_core.storage.limits import KeyAndTenant
from memplane_core.storage.usage_days import UsageMeter
from memplane_core.web.middleware import PUBLIC
from memplane_core.web.request import ServiceRequest
from memplane_gateway.rates import REFUSED, RateLimiter, Standing, Verdict, Window
from memplane_gateway.route_access import Access, access_of

_MANY: Final = 999_999_999_999_999
"""The largest integer that a structured header field can hold."""

NO_POLICY: Final = f'"unlimited";q={_MANY}'
NO_STANDING: Final = f'"unlimited";r={_MANY}'
_STATE: Final = "limits"

FindLimits = Callable[[TenantId, str], Awaitable[KeyAndTenant]]
"""Reads the limits of a tenant and one of its keys. Raises Unavailable."""


class _Known(msgspec.Struct):
    tenant: TenantId
    limits: KeyAndTenant
    read_at: float


class LimitDirectory:
    """The limits of keys and tenants, as Postgres had them a few seconds ago.

    Args:
        find: Asks Postgres.
        defaults: The installation's.
        trust_s: From this age on they are read anew, beside the request that finds them so; from twice this age on
            the request waits for it.
        clock: Seconds that never go back.
    """

    def __init__(
        self,
        find: FindLimits,
        *,
        defaults: EffectiveLimits,
        trust_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.defaults = defaults
        self._find = find
        self._trust_s = trust_s
        self._clock = clock
        self._known: LRUCache[str, _Known] = LRUCache(50_000)
        self._asking: dict[str, asyncio.Task[KeyAndTenant]] = {}

    async def of(self, tenant: TenantId, key_id: str) -> KeyAndTenant:
        """What holds for requests with that key. Raises Unavailable where it was never read and cannot be."""
        known = self._known.get(key_id)
        age = math.inf if known is None else self._clock() - known.read_at
        if known is not None and age < self._trust_s:
            return known.limits
        asking = self._ask_once(tenant, key_id)
        if known is not None and age < 2 * self._trust_s:
            return known.limits
        try:
            return await asyncio.shield(asking)
        except Unavailable:
            if known is None:
                raise
            return known.limits

    def forget(self, tenant: TenantId) -> None:
        """Read the limits of the tenant's keys anew when they come next."""
        for key_id in [key_id for key_id, known in self._known.items() if known.tenant == tenant]:
            self._known.pop(key_id, None)

    def _ask_once(self, tenant: TenantId, key_id: str) -> "asyncio.Task[KeyAndTenant]":
        task = self._asking.get(key_id)
        if task is None:
            task = self._asking[key_id] = asyncio.create_task(self._ask(tenant, key_id))
            task.add_done_callback(lambda done: self._asked(key_id, done))
        return task

    async def _ask(self, tenant: TenantId, key_id: str) -> KeyAndTenant:
        read_at = self._clock()
        limits = await self._find(tenant, key_id)
        self._known[key_id] = _Known(tenant, limits, read_at)
        return limits

    def _asked(self, key_id: str, task: "asyncio.Task[KeyAndTenant]") -> None:
        self._asking.pop(key_id, None)
        if not task.cancelled():
            task.exception()  # seen here even if nobody waits for it


class _Standing(msgspec.Struct):
    """What is kept of a request for the headers of its answer.

    Attributes:
        policy: `RateLimit-Policy`.
        standing: `RateLimit`.
    """

    access: Access | None
    limits: KeyAndTenant
    policy: str = NO_POLICY
    standing: str = NO_STANDING


class Limiter(ASGIMiddleware):
    """Refuses what a key may not do, what comes too fast, and bodies that are too long.

    Runs after the key is known. The admin routes and the public ones have no limits.
    """

    scopes = (ScopeType.HTTP,)
    exclude_opt_key = PUBLIC

    def __init__(self, directory: LimitDirectory, rates: RateLimiter) -> None:
        self._directory = directory
        self._rates = rates

    async def handle(self, scope: Scope, receive: Receive, send: Send, next_app: ASGIApp) -> None:
        """Let the request go on within its limits.

        Raises:
            RateLimited: Too many came within too short a time.
            Forbidden: The key lacks the route's scope.
            PayloadTooLarge: Its body is longer than the tenant or the key may send.
        """
        principal = scope["state"].get("principal")
        if isinstance(principal, Principal):
            access = access_of(str(cast("HTTPScope", scope)["method"]), scope["path_template"])
            limits = await self._directory.of(principal.tenant, principal.key_id)
            standing = scope["state"][_STATE] = _Standing(access, limits)
            if access is not None:
                await self._check_rate(principal, access, standing)
                if access.scope is not None and access.scope not in principal.scopes:
                    raise Forbidden(f"this route needs a key with the scope {access.scope!r}")
            if access is None or not access.streamed:
                receive = _bounded(scope, receive, most=_least(limits.tenant.body_bytes, limits.key.body_bytes))
        await next_app(scope, receive, send)

    async def _check_rate(self, principal: Principal, access: Access, standing: _Standing) -> None:
        windows = _windows(principal, access, standing.limits)
        if not windows:
            return
        verdict = await self._rates.admit(windows)
        standing.policy, standing.standing = _headers(windows, verdict)
        if not verdict.admitted:
            full = [its for its in verdict.standings if its.left == 0]
            for its in full:
                REFUSED.labels(its.window.name).inc()
            slowest = max(full, key=lambda its: its.wait_s)
            rate = slowest.window.rate
            raise RateLimited(
                f"the limit {slowest.window.name!r} is {rate.requests:,} requests in {rate.seconds} s",
                retry_after=max(1, math.ceil(slowest.wait_s)),
            )


def _windows(principal: Principal, access: Access, limits: KeyAndTenant) -> list[Window]:
    """The windows of a request. Their keys share a slot of a cluster, as what one script looks at must."""
    found: list[Window] = []
    name = access.rate
    slot = f"mp:rate:{{{principal.tenant.hex}}}"
    if (rate := getattr(limits.tenant, name)) is not None:
        found.append(Window(f"tenant-{name}", f"{slot}:{name}:{rate.seconds}", rate))
    if (rate := getattr(limits.key, name)) is not None:
        found.append(Window(f"key-{name}", f"{slot}:{principal.key_id}:{name}:{rate.seconds}", rate))
    return found


def _headers(windows: Sequence[Window], verdict: Verdict) -> tuple[str, str]:
    """`RateLimit-Policy` and `RateLimit`, draft-ietf-httpapi-ratelimit-headers-10.

    Where nothing was counted, each window is said to have all of its requests left.
    """
    policy = ", ".join(f'"{its.name}";q={its.rate.requests};w={its.rate.seconds}' for its in windows)
    standings = verdict.standings or [Standing(its, its.rate.requests, 0) for its in windows]
    standing = ", ".join(f'"{its.window.name}";r={its.left};t={math.ceil(its.wait_s)}' for its in standings)
    return policy, standing


def _least(first: int, second: int | None) -> int:
    return first if second is None else min(first, second)


def _bounded(scope: Scope, receive: Receive, *, most: int) -> Receive:
    """`receive`, for as long as the body is not longer than `most` bytes. Raises PayloadTooLarge."""
    told = Headers.from_scope(scope).get("content-length", "")
    if told.isdecimal() and int(told) > most:
        raise _too_large(most)
    came = 0

    async def receive_bounded() -> Message:
        nonlocal came
        message = await receive()
        if message["type"] == "http.request":
            came += len(message["body"])
            if came > most:
                raise _too_large(most)
        return message  # pyright: ignore[reportReturnType]

    return receive_bounded  # pyright: ignore[reportReturnType]


def _too_large(most: int) -> PayloadTooLarge:
    return PayloadTooLarge(f"the body is longer than the {most:,} bytes that this key may send")


def check_batch_items(request: ServiceRequest, count: int, *, noun: str = "memories") -> None:
    """Raise InvalidRequest where a batch has more items than the caller's limits allow; `noun` is what they are."""
    standing = request.scope["state"].get(_STATE)
    if isinstance(standing, _Standing):
        most = _least(standing.limits.tenant.batch_items, standing.limits.key.batch_items)
        if count > most:
            raise invalid(f"/{noun}", f"has {count} {noun}; this key may write {most} at once")


class Answers:
    """Puts the rate headers on every answer, and counts what the tenant does.

    Args:
        usage: Counts.
    """

    def __init__(self, usage: Callable[[], UsageMeter | None]) -> None:
        self._usage = usage

    async def __call__(self, message: Message, scope: Scope) -> None:
        """See one message before it is sent."""
        if message["type"] != "http.response.start":
            return
        standing = scope["state"].get(_STATE)
        known = standing if isinstance(standing, _Standing) else None
        headers = MutableScopeHeaders.from_message(message)
        headers["RateLimit-Policy"] = NO_POLICY if known is None else known.policy
        headers["RateLimit"] = NO_STANDING if known is None else known.standing
        if known is not None and known.access is not None and message["status"] < 400:
            self._count(scope["state"]["principal"], known.access)

    def _count(self, principal: Principal, access: Access) -> None:
        usage = self._usage()
        if usage is not None and access.metered is not None:
            writes = int(access.metered == "write")
            usage.add(principal.tenant, writes=writes, searches=1 - writes)
