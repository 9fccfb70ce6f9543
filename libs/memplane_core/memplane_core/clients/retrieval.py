"""The retrieval service as the gateway sees it: requests go there and answers come back as they are."""

from collections.abc import Mapping
from typing import Final

import msgspec
import structlog

from memplane_core.clients.http import ServiceHttp, ServiceTimeout, ServiceUnreachable
from memplane_core.domain.errors import MemplaneError, Unavailable, UpstreamTimeout
from memplane_core.domain.tenancy import Principal
from memplane_core.security.internal import InternalTokens

IDEMPOTENCY_KEY: Final = "Idempotency-Key"

_PASSED_BACK: Final = ("Content-Type", "ETag", "Idempotency-Replayed", "Location", "Retry-After")
_PROBLEM: Final = "application/problem+json"

_AGAIN: Final = f"repeat it with the same {IDEMPOTENCY_KEY}"
_UNSENT: Final = "the memory service cannot be reached; nothing was changed, try again"
_BROKEN_OFF: Final = f"the memory service broke off and may have carried this out: {_AGAIN}"
_LATE: Final = "the memory service did not answer in time"
_LATE_CHANGE: Final = f"{_LATE} and may still carry this out: {_AGAIN}"

_log: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(__name__)


class Forwarded(msgspec.Struct, frozen=True):
    """An answer to hand on untouched. `headers` holds those that mean something to the caller."""

    status: int
    headers: dict[str, str]
    body: bytes


class RetrievalClient:
    """Sends callers' requests to the retrieval service on their behalf.

    Args:
        url: Of the service, without a path.
        tokens: Signs for whom each request is made.
    """

    def __init__(self, url: str, tokens: InternalTokens) -> None:
        self._http = ServiceHttp(url, service="retrieval")
        self._tokens = tokens

    async def close(self) -> None:
        """Give back the connections."""
        await self._http.close()

    async def forward(
        self,
        principal: Principal,
        method: str,
        *,
        path: str,
        timeout_s: float,
        repeatable: bool,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
    ) -> Forwarded:
        """Have a request carried out for `principal`.

        Args:
            principal: Whose request it is.
            method: HTTP method.
            path: With its query string, percent-encoded.
            timeout_s: Deadline of everything together.
            repeatable: Whether doing it twice does no harm, so that a broken connection is worth another try.
            headers: Handed on with the request.
            body: Valid JSON, handed on byte for byte.

        Raises:
            Unavailable: The service cannot be reached, or does not trust us.
            UpstreamTimeout: The deadline passed.
            MemplaneError: The service failed without saying why.
        """
        sent = {**(headers or {}), "Authorization": f"Bearer {self._tokens.sign(principal)}"}
        if body is not None:
            sent["Content-Type"] = "application/json"
        reads = repeatable and IDEMPOTENCY_KEY not in sent
        try:
            answer = await self._http.call(
                method, path, headers=sent, body=body, timeout_s=timeout_s, repeatable=repeatable
            )
        except ServiceUnreachable as error:
            _log.warning("retrieval unreachable", path=path.partition("?")[0], unsent=error.unsent, reason=str(error))
            detail = _UNSENT if error.unsent or reads else _BROKEN_OFF
            raise Unavailable(detail, retry_after=self._http.retry_after_s) from None
        except ServiceTimeout:
            _log.warning("retrieval timed out", path=path.partition("?")[0], timeout_s=timeout_s)
            raise UpstreamTimeout(_LATE if reads else _LATE_CHANGE) from None
        if answer.status >= 400:
            _check_problem(answer.status, answer.headers)
        passed = {name: value for name in _PASSED_BACK if (value := answer.headers.get(name)) is not None}
        return Forwarded(answer.status, passed, answer.body)

    async def ping(self) -> None:
        """Return when the service answers. Raises Unavailable."""
        try:
            answer = await self._http.call("GET", "/healthz", timeout_s=1.5, repeatable=True, attempts=1)
        except (ServiceUnreachable, ServiceTimeout) as error:
            raise Unavailable(str(error)) from None
        if answer.status != 200:
            raise Unavailable(f"retrieval answers {answer.status}")


def _check_problem(status: int, headers: Mapping[str, str]) -> None:
    """Keep answers that were not made for callers from them."""
    if status == 401:
        _log.error("retrieval refuses our internal token: do the services share MEMPLANE_TRUST__INTERNAL_SECRET?")
        raise Unavailable("the services of this installation do not trust each other; tell its operator")
    if not headers.get("Content-Type", "").startswith(_PROBLEM):
        _log.error("retrieval failed without a problem document", status=status)
        raise MemplaneError("something went wrong on our side; the request id finds it in the logs")
