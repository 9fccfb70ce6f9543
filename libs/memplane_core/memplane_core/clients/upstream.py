"""HTTP to a server of somebody else's that speaks OpenAI's shape: asked again, within a deadline, where it may help."""

import asyncio
from typing import Final

import msgspec
import stamina

from memplane_core.clients.http import HttpAnswer, ServiceHttp, ServiceTimeout, ServiceUnreachable

_REFUSALS: Final = frozenset((400, 413, 422))
_PASSING: Final = frozenset((408, 409, 425, 429))
_LONGEST_PAUSE_S: Final = 20.0


class UpstreamRefused(Exception):
    """What was sent is at fault; another try would end the same way.

    Attributes:
        answer: What the server says about it, which may quote what was sent.
    """

    def __init__(self, answer: HttpAnswer) -> None:
        super().__init__(f"refused with {answer.status}")
        self.answer = answer


class UpstreamAway(Exception):
    """No answer in time, or none of any use.

    Attributes:
        retry_after: Whole seconds after which another try is worth it.
        answer: The last one that was had, which may quote what was sent; None where there was none.
    """

    def __init__(self, reason: str, *, retry_after: int, answer: HttpAnswer | None = None) -> None:
        super().__init__(reason)
        self.retry_after = retry_after
        self.answer = answer


class _Busy(Exception):
    """Worth another try after `pause_s`."""

    def __init__(self, answer: HttpAnswer) -> None:
        super().__init__(f"it answers {answer.status}")
        self.answer = answer
        self.pause_s = _retry_after(answer)


class Upstream:
    """One such server.

    Args:
        base_url: Up to and without the path of a call, as `https://host/v1`.
        key: Sent as a bearer token; `""` sends none.
        service: Its name in errors.
    """

    def __init__(self, base_url: str, *, key: str, service: str) -> None:
        self._http = ServiceHttp(base_url, service=service, name="upstream", traced=False)
        self._service = service
        self._headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})

    async def close(self) -> None:
        """Give back the connections."""
        await self._http.close()

    async def post(self, path: str, body: bytes, *, timeout_s: float) -> HttpAnswer:
        """The answer of status 200. Tries again, within the time, what may pass: 429, 5xx, no connection.

        Raises:
            UpstreamRefused: See there.
            UpstreamAway: See there.
        """
        deadline = asyncio.get_running_loop().time() + timeout_s

        def pause(error: Exception) -> bool | float:
            """Whether to try again, and after how many seconds where the server says so."""
            if not isinstance(error, _Busy) or error.pause_s is None:
                return isinstance(error, _Busy | ServiceUnreachable)
            return error.pause_s if asyncio.get_running_loop().time() + error.pause_s < deadline else False

        try:
            async with asyncio.timeout_at(deadline):
                async for attempt in stamina.retry_context(
                    on=pause, attempts=None, timeout=timeout_s, wait_initial=0.2, wait_max=5.0, wait_jitter=0.2
                ):
                    with attempt:
                        return await self._ask(path, body, timeout_s=timeout_s)
        except TimeoutError as error:
            raise self._away(f"had no answer within {timeout_s:g} s") from error
        except _Busy as error:
            raise self._away(f"answers {error.answer.status}", answer=error.answer) from error
        except (ServiceUnreachable, ServiceTimeout) as error:
            raise UpstreamAway(str(error), retry_after=self._http.retry_after_s) from error
        raise AssertionError("a retry context ends by a return or an error")

    async def _ask(self, path: str, body: bytes, *, timeout_s: float) -> HttpAnswer:
        answer = await self._http.call(
            "POST", path, timeout_s=timeout_s, repeatable=True, headers=self._headers, body=body
        )
        if answer.status in _REFUSALS:
            raise UpstreamRefused(answer)
        if answer.status in _PASSING or answer.status >= 500:
            raise _Busy(answer)
        if answer.status != 200:
            raise UpstreamAway(f"{self._service} answers {answer.status}", retry_after=30, answer=answer)
        return answer

    def _away(self, what: str, *, answer: HttpAnswer | None = None) -> UpstreamAway:
        return UpstreamAway(f"{self._service} {what}", retry_after=self._http.retry_after_s, answer=answer)


def quoted(answer: HttpAnswer | None) -> str:
    """The beginning of an answer, for whoever may read what was sent; `""` for none."""
    return "" if answer is None else f": {answer.body[:300].decode(errors='replace')}"


class _Error(msgspec.Struct, frozen=True):
    code: str | int | None = None
    type: str | None = None


class _Problem(msgspec.Struct, frozen=True):
    error: _Error


def error_code(answer: HttpAnswer | None) -> str:
    """The server's own name for what is wrong, ` (like_this)`, where it gives one: it quotes nothing. Else `""`."""
    try:
        problem = msgspec.json.decode(b"" if answer is None else answer.body, type=_Problem)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""
    for name in (problem.error.code, problem.error.type):
        if isinstance(name, str) and len(name) <= 64 and name.isascii() and name.replace("_", "").isalnum():
            return f" ({name})"
    return ""


def _retry_after(answer: HttpAnswer) -> float | None:
    try:
        return min(max(0.05, float(answer.headers.get("Retry-After", ""))), _LONGEST_PAUSE_S)
    except ValueError:
        return None
