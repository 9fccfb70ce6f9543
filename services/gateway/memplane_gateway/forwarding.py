"""Hands a request that has been checked on to the retrieval service, and its answer back."""

from collections.abc import Mapping
from typing import TypeVar
from urllib.parse import urlencode
from uuid import UUID

from litestar import Response

from memplane_core.clients.retrieval import IDEMPOTENCY_KEY, RetrievalClient
from memplane_core.domain.tenancy import Scope
from memplane_core.web.request import ServiceRequest

T = TypeVar("T")


class Forwarder:
    """Forwards within the installation's deadline.

    Args:
        retrieval: Where to.
        timeout_s: Deadline of a request that does not ask for more.
    """

    def __init__(self, retrieval: RetrievalClient, *, timeout_s: float) -> None:
        self._retrieval = retrieval
        self._timeout_s = timeout_s

    async def forward(
        self,
        request: ServiceRequest,
        scope: Scope,
        *,
        path: str,
        method: str | None = None,
        body: bytes | None = None,
        query: Mapping[str, str | int | None] | None = None,
        headers: Mapping[str, str | None] | None = None,
        repeatable: bool = False,
        extra_s: float = 0.0,
    ) -> Response[bytes]:
        """The retrieval service's answer, as it is.

        Args:
            request: Checked by now; its body goes along byte for byte.
            scope: What the caller's key must have.
            path: Percent-encoded.
            method: Instead of the request's own.
            body: Instead of the request's own.
            query: Parameters of the query string; one that is None was not given.
            headers: To hand on; likewise.
            repeatable: Whether doing it twice does no harm, as with every request that has an Idempotency-Key.
            extra_s: On top of the deadline, for an answer that may be held back on purpose.

        Raises:
            Forbidden: The key lacks `scope`.
            Unavailable: The service is away.
            UpstreamTimeout: It took too long.
        """
        # The service behind enforces what a key is bound to, and refuses bound keys where it cannot.
        principal = request.require(scope, bound=True)
        given = _given(headers)
        asked = urlencode(_given(query))
        answer = await self._retrieval.forward(
            principal,
            method or request.method,
            path=f"{path}?{asked}" if asked else path,
            headers=given,
            body=body if body is not None else await request.body() or None,
            timeout_s=self._timeout_s + extra_s,
            repeatable=repeatable or IDEMPOTENCY_KEY in given,
        )
        return Response(answer.body, status_code=answer.status, headers=answer.headers)

    async def change(
        self,
        request: ServiceRequest,
        memory_id: UUID,
        *,
        deed: str = "",
        if_match: str | None,
        idempotency_key: str | None,
    ) -> Response[bytes]:
        """`forward` for a request that changes one memory.

        Args:
            request: See `forward`.
            memory_id: The memory.
            deed: What comes after its id in the path; the memory itself where it is empty.
            if_match: The `If-Match` that it came with.
            idempotency_key: The `Idempotency-Key` that it came with.
        """
        return await self.forward(
            request,
            "memories:write",
            path=f"/v1/memories/{memory_id}{deed}",
            headers={"If-Match": if_match, IDEMPOTENCY_KEY: idempotency_key},
        )


def _given(fields: Mapping[str, T | None] | None) -> dict[str, T]:
    return {name: value for name, value in (fields or {}).items() if value is not None}
