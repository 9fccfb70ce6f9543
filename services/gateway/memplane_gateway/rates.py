"""Rates of requests, counted in Valkey for all gateways together.

Each window keeps the moments of the requests it admitted, by Valkey's own clock: no span of its length ever holds more
than its limit, wherever it begins and whichever gateways admitted them. All windows of a request are looked at in one
script, one round trip, and a request that any of them refuses counts in none.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, cast

import msgspec
from prometheus_client import Counter
from redis.asyncio import Redis
from redis.exceptions import RedisError

from memplane_core.background import end
from memplane_core.clients.valkey import valkey_client
from memplane_core.contracts.limits import Rate
from memplane_core.observability.logs import get_logger

NOT_ENFORCED: Final = Counter(
    "memplane_gateway_rates_not_enforced_total", "Requests let through uncounted, because Valkey did not answer."
)
REFUSED: Final = Counter(
    "memplane_gateway_rate_refusals_total", "Requests refused for their rate.", labelnames=("window",)
)

_LOOK_AGAIN_S: Final = 0.5

# For each window its limit and its length in microseconds. The answer is whether the request is admitted, and for each
# window how many it holds now and how long until it takes one more than it would at this moment.
_SCRIPT: Final = """
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local admitted = 1
for i, key in ipairs(KEYS) do
    local oldest = redis.call('LINDEX', key, -1)
    while oldest and tonumber(oldest) <= now - ARGV[2 * i] do
        redis.call('RPOP', key)
        oldest = redis.call('LINDEX', key, -1)
    end
    if redis.call('LLEN', key) >= tonumber(ARGV[2 * i - 1]) then
        admitted = 0
    end
end
local answer = {admitted}
for i, key in ipairs(KEYS) do
    if admitted == 1 then
        redis.call('LPUSH', key, string.format('%.0f', now))
        redis.call('PEXPIRE', key, math.ceil(ARGV[2 * i] / 1000))
    end
    local held = redis.call('LLEN', key)
    local leaves = redis.call('LINDEX', key, math.min(held, tonumber(ARGV[2 * i - 1])) - 1)
    answer[#answer + 1] = held
    answer[#answer + 1] = leaves and math.ceil(leaves + ARGV[2 * i] - now) or 0
end
return answer
"""

_log = get_logger(__name__)


class Window(msgspec.Struct, frozen=True):
    """A limit that a request is counted against.

    Attributes:
        name: As callers see it.
        key: Names it in Valkey.
        rate: How much it takes.
    """

    name: str
    key: str
    rate: Rate


class Standing(msgspec.Struct, frozen=True):
    """How a window stands after a request.

    Attributes:
        left: Requests that it would take right now.
        wait_s: Until it takes one more than that.
    """

    window: Window
    left: int
    wait_s: float


class Verdict(msgspec.Struct, frozen=True):
    """Whether a request may go on, and how its windows stand; nothing is known of them where Valkey is away."""

    admitted: bool
    standings: Sequence[Standing]


class RateLimiter:
    """Counts requests in Valkey. While that does not answer all are admitted, and none waits for it.

    Args:
        url: Of the cache server.
        timeout_s: Longest wait for an answer. After one that did not come nobody asks until a probe was answered.
        tls: What the client is told of TLS besides the URL.
    """

    def __init__(self, url: str, *, timeout_s: float, tls: Mapping[str, Any] | None = None) -> None:
        self._redis = valkey_client(url, timeout_s=timeout_s, tls=tls)
        self._script = self._redis.register_script(_SCRIPT)
        self._probe: asyncio.Task[None] | None = None

    @property
    def away(self) -> bool:
        """Valkey did not answer when it was asked last."""
        return self._probe is not None

    @property
    def client(self) -> Redis:
        """Of the cache server; decodes nothing."""
        return self._redis

    async def admit(self, windows: Sequence[Window]) -> Verdict:
        """Count a request in all of `windows`, at least one, or in none where one of them is full."""
        if self._probe is None:
            arguments = [number for its in windows for number in (its.rate.requests, its.rate.seconds * 1_000_000)]
            try:
                answer = cast("list[int]", await self._script(keys=[its.key for its in windows], args=arguments))
            except (RedisError, OSError, TimeoutError) as error:
                self._give_up(error)
            else:
                return _verdict(windows, answer)
        NOT_ENFORCED.inc()
        return Verdict(admitted=True, standings=())

    async def close(self) -> None:
        """Give back the connections."""
        if self._probe is not None:
            await end(self._probe)
        await self._redis.aclose()

    def _give_up(self, error: Exception) -> None:
        if self._probe is None:
            _log.warning("rates are not enforced: Valkey does not answer", error=str(error) or type(error).__name__)
            self._probe = asyncio.create_task(self._wait_for_it())

    async def _wait_for_it(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_AGAIN_S)
            with suppress(RedisError, OSError, TimeoutError):
                await self._redis.ping()  # pyright: ignore[reportUnknownMemberType]
                break
        self._probe = None
        _log.info("rates are enforced again")


def _verdict(windows: Sequence[Window], answer: Sequence[int]) -> Verdict:
    standings = [
        Standing(window, max(window.rate.requests - held, 0), max(wait, 0) / 1_000_000)
        for window, held, wait in zip(windows, answer[1::2], answer[2::2], strict=True)
    ]
    return Verdict(bool(answer[0]), standings)
