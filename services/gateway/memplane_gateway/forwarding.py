"""Hands a request that has been checked on to the retrieval service, and its answer back."""

from collections.abc import Mapping
from urllib.parse import urlencode

from litestar import Response

from memplane_core.clients.retrieval import IDEMPOTENCY_KEY, RetrievalClient
from memplane_core.domain.tenancy import Scope
from memplane_core.web.request import ServiceRequest


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
        query: Mapping[str, str | int] | None = None,
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
            query: Parameters of the query string.
            headers: To hand on; one that is None was not given.
            repeatable: Whether doing it twice does no harm, as with every request that has an Idempotency-Key.
            extra_s: On top of the deadline, for an answer that may be held back on purpose.

        Raises:
            Forbidden: The key lacks `scope`.
            Unavailable: The service is away.
            UpstreamTimeout: It took too long.
        """
        # The service behind enforces what a key is bound to, and refuses bound keys where it cannot.
        principal = request.require(scope, bound=True)
        given = {name: value for name, value in (headers or {}).items() if value is not None}
        answer = await self._retrieval.forward(
            principal,
            method or request.method,
            path=f"{path}?{urlencode(query)}" if query else path,
            headers=given,
            body=body if body is not None else await request.body() or None,
            timeout_s=self._timeout_s + extra_s,
            repeatable=repeatable or IDEMPOTENCY_KEY in given,
        )
        return Response(answer.body, status_code=answer.status, headers=answer.headers)
