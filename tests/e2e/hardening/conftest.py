"""The platform as it meets the outside: real processes with short patience and talkative logs, and raw sockets."""

import socket
from collections.abc import Generator
from contextlib import ExitStack
from typing import Any, Final, Self

import msgspec
import pytest

from memplane_core.testing.milvus_lite import MilvusLite
from memplane_core.testing.stack import Stack, StackTenant

PATIENCE_S: Final = 2.0
INTERNAL_SECRET: Final = "marker-internal-secret-of-these-tests-0123456789"
ORIGIN: Final = "https://app.example"

_ENDLESS: Final = 10**18

SETTINGS: Final = {
    "MEMPLANE_SERVER__PATIENCE_S": str(PATIENCE_S),
    "MEMPLANE_SERVER__MIN_BYTES_S": "10000000",
    "MEMPLANE_LOG__LEVEL": "debug",
    "MEMPLANE_TRUST__INTERNAL_SECRET": INTERNAL_SECRET,
    "MEMPLANE_GATEWAY__CORS_ORIGINS": msgspec.json.encode([ORIGIN]).decode(),
    "MEMPLANE_POSTGRES__POOL_MAX": "4",
}


class Answer(msgspec.Struct, frozen=True):
    """What came back over a socket.

    Attributes:
        status: 0 where nothing came.
        headers: Names in lower case; of one that came twice, the last.
        body: All behind the headers, answers to further requests included.
        closed: The service ended the connection.
    """

    status: int
    headers: dict[str, str]
    body: bytes
    closed: bool

    @property
    def problem(self) -> dict[str, Any]:
        """The body as a problem document, which it must be."""
        assert self.headers["content-type"] == "application/problem+json", self
        found: dict[str, Any] = msgspec.json.decode(self.body)
        assert (found["status"], found["request_id"]) == (self.status, self.headers["x-request-id"])
        return found


class Wire:
    """One connection on which anything can be said."""

    def __init__(self, port: int, *, receive_buffer: int | None = None) -> None:
        self._socket = socket.socket()
        if receive_buffer is not None:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self._socket.settimeout(10)
        self._socket.connect(("127.0.0.1", port))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def say(self, *pieces: bytes | str) -> Self:
        """Send; what the service does not take any more is not missed."""
        try:
            for piece in pieces:
                self._socket.sendall(piece.encode("latin-1") if isinstance(piece, str) else piece)
        except OSError:
            pass
        return self

    def hear(self, *, within_s: float = 10.0, bodiless: bool = False) -> Answer:
        """The answer with as much of a body as its length says, or until the connection ends or nothing comes."""
        self._socket.settimeout(within_s)
        got, whole, closed = bytearray(), _ENDLESS, False
        try:
            while len(got) < whole and not closed:
                piece = self._socket.recv(1024 * 1024)
                closed = piece == b""
                got += piece
                if whole == _ENDLESS and b"\r\n\r\n" in got:  # once: who reads slowly is given up
                    whole = _length(bytes(got), bodiless=bodiless)
        except ConnectionError:
            closed = True
        except TimeoutError:
            pass
        return _parsed(bytes(got), closed=closed)

    def is_closed(self, *, within_s: float) -> bool:
        """Whether the service ends the connection in that time, saying no more."""
        self._socket.settimeout(within_s)
        try:
            return self._socket.recv(1) == b""
        except ConnectionError:
            return True
        except TimeoutError:
            return False


def _parsed(got: bytes, *, closed: bool) -> Answer:
    head, _, body = got.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    pairs = (line.partition(":") for line in lines)
    headers = {name.lower(): value.strip() for name, _, value in pairs}
    return Answer(int(first.split()[1]) if first else 0, headers, body, closed)


def _length(begun: bytes, *, bodiless: bool) -> int:
    """Of an answer whose headers have come, in bytes."""
    answer = _parsed(begun, closed=False)
    head = len(begun) - len(answer.body)
    if bodiless or answer.status in (100, 204):
        return head
    return head + int(answer.headers.get("content-length", _ENDLESS))


class Door:
    """The gateway of the stack and a tenant of it."""

    def __init__(self, stack: Stack, tenant: StackTenant) -> None:
        self.stack = stack
        self.tenant = tenant

    def wire(self, *, receive_buffer: int | None = None) -> Wire:
        """A new connection; close it."""
        return Wire(self.stack.gateways[0].port, receive_buffer=receive_buffer)

    def head(
        self,
        method: str,
        target: str,
        *headers: str,
        key: str | None = "",
        json: bool = False,
        length: int | None = None,
    ) -> str:
        """Request line and headers.

        Args:
            method: Anything.
            target: Anything.
            headers: Lines without their ends.
            key: In `Authorization`; `""` is the tenant's, None sends none.
            json: Whether to say that the body is JSON.
            length: Of the body; None says nothing of it.
        """
        lines = [f"{method} {target} HTTP/1.1", "Host: memplane.example"]
        if key is not None:
            lines.append(f"Authorization: Bearer {key or self.tenant.key}")
        if json:
            lines.append("Content-Type: application/json")
        if length is not None:
            lines.append(f"Content-Length: {length}")
        return "\r\n".join([*lines, *headers, "", ""])

    def ask(self, method: str, target: str, *headers: str, key: str | None = "", body: bytes | None = None) -> Answer:
        """A request of its own on a connection of its own; a body is said to be JSON unless a header says otherwise."""
        json = body is not None and not any(line.lower().startswith("content-type") for line in headers)
        head = self.head(method, target, *headers, key=key, json=json, length=None if body is None else len(body))
        with self.wire() as wire:
            return wire.say(head, body or b"").hear(bodiless=method == "HEAD")


@pytest.fixture(scope="session")
def stack() -> Generator[Stack]:
    """One for all of these tests. Whoever breaks a part of it mends it."""
    with ExitStack() as opening:
        yield opening.enter_context(Stack(MilvusLite(), env=SETTINGS))


@pytest.fixture(scope="session")
def door(stack: Stack) -> Door:
    return Door(stack, stack.make_tenant("hardening"))
