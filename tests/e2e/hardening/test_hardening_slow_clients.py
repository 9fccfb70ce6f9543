"""Clients that send or read too slowly, and what is left for all others meanwhile."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import ExitStack
from typing import Any, cast

import asyncpg
import msgspec
import psutil
import pytest
from tests.e2e.hardening.conftest import PATIENCE_S, Door, Wire

from memplane_core.testing.process import ServiceProcess
from memplane_core.testing.stack import Stack

BODY = b'{"content": "in no hurry"}'
HEADER_TIMEOUT_S = 2.0


def connections(stack: Stack) -> int:
    """Open to the gateway's port, from outside."""
    gateway = psutil.Process(stack.gateways[0].pid)
    every = [gateway, *gateway.children(recursive=True)]
    found = [its for process in every for its in process.net_connections("tcp")]
    return sum(its.status == "ESTABLISHED" and its.laddr.port == stack.gateways[0].port for its in found)


@pytest.fixture(scope="module")
def hasty(stack: Stack) -> Generator[ServiceProcess]:
    """Another gateway, which waits for headers no longer than it must."""
    env = stack.env | {"MEMPLANE_SERVER__HEADER_TIMEOUT_S": str(HEADER_TIMEOUT_S)}
    with ServiceProcess("memplane_gateway", env=env) as process:
        yield process


def test_headers_that_do_not_come_end_the_connection(hasty: ServiceProcess) -> None:
    for begun in ("", "GET /healthz HTTP/1.1\r\nHost: x\r\nX-Slow"):
        with Wire(hasty.port) as wire:
            assert wire.say(begun).is_closed(within_s=10)


def test_a_connection_that_is_not_used_again_ends(hasty: ServiceProcess, door: Door) -> None:
    with Wire(hasty.port) as wire:
        assert wire.say(door.head("GET", "/v1/whoami")).hear().status == 200
        assert wire.is_closed(within_s=10)


@pytest.mark.parametrize("framing", ["Content-Length: 1000", "Transfer-Encoding: chunked"])
def test_a_body_that_does_not_come_is_answered_408_and_the_connection_ended(door: Door, framing: str) -> None:
    began = time.monotonic()
    with door.wire() as wire:
        answer = wire.say(door.head("POST", "/v1/memories", framing, json=True), b"1\r\n").hear()
        assert (answer.status, answer.problem["code"]) == (408, "request_timeout")
        assert wire.is_closed(within_s=10)
    assert time.monotonic() - began >= PATIENCE_S


def test_a_byte_now_and_then_buys_no_time(door: Door) -> None:
    with door.wire() as wire:
        wire.say(door.head("POST", "/v1/memories", json=True, length=1000))
        answer = wire.hear(within_s=0.2)
        while answer.status == 0 and not answer.closed:
            answer = wire.say(b" ").hear(within_s=0.2)
        assert answer.status == 408


def test_a_body_may_come_in_pieces(door: Door) -> None:
    with door.wire() as wire:
        wire.say(door.head("POST", "/v1/memories", json=True, length=len(BODY)), BODY[:10])
        assert wire.hear(within_s=0.3).status == 0
        assert wire.say(BODY[10:]).hear().status in (200, 201)


def test_a_long_answer_that_nobody_reads_is_given_up(door: Door) -> None:
    """What the kernels have taken on both sides is on its way; the rest is dropped and the connection with it."""
    items = [{"content": f"{n} {'x' * 32_000}", "metadata": {"pad": "y" * 16_000}} for n in range(200)]
    body = msgspec.json.encode({"memories": items})
    assert door.ask("POST", "/v1/memories/batch", body=body).status == 200
    whole = door.ask("GET", "/v1/memories?limit=1000")
    assert whole.status == 200
    assert len(whole.body) == int(whole.headers["content-length"]) > 9_000_000
    with door.wire(receive_buffer=4096) as wire:
        wire.say(door.head("GET", "/v1/memories?limit=1000"))
        deadline = time.monotonic() + 15
        while "client given up" not in door.stack.gateways[0].log():
            assert time.monotonic() < deadline, "the answer is still waited for"
            time.sleep(0.1)
        cut = wire.hear()
    assert cut.closed
    assert len(cut.body) < len(whole.body)


def test_two_hundred_slow_clients_keep_nobody_waiting_and_hold_no_database_connection(door: Door, stack: Stack) -> None:
    body = msgspec.json.encode({"content": "while others dawdle"})
    beginnings = (
        "GET /v1/whoami HTTP/1.1\r\nHost: x\r\nX-Slow",
        door.head("POST", "/v1/memories", json=True, length=1000) + "{",
        door.head("POST", "/v1/keys", "Transfer-Encoding: chunked", json=True) + "1\r\n{",
        door.head("POST", "/admin/v1/tenants", key=stack.admin_key, json=True, length=1000),
    )
    held: list[int] = []
    with ExitStack() as opening:
        for n in range(200):
            opening.enter_context(door.wire()).say(beginnings[n % 4])
            if n % 40 == 39:
                held.append(connections(stack))
                assert door.ask("POST", "/v1/memories", body=body).status in (200, 201)
                assert door.ask("GET", "/v1/policy").status == 200
                # Others have theirs for moments; a slow client would have one for as long as it is waited for.
                asyncio.run(_until_those_that_wait_end(stack.postgres.superuser_url(), within_s=PATIENCE_S * 0.75))
    assert max(held) >= 40  # the rest had been given up, on a busy machine
    deadline = time.monotonic() + 10
    while connections(stack) > 5:
        assert time.monotonic() < deadline, "connections are left open"
        time.sleep(0.1)


async def _until_those_that_wait_end(url: str, *, within_s: float) -> None:
    """Return once no transaction is open any more of those that wait now for whoever began them."""
    connect = cast("Callable[..., Awaitable[Any]]", asyncpg.connect)  # whose own types are partly unknown
    connection = await connect(url)
    waiting = "SELECT pid, xact_start FROM pg_stat_activity WHERE state LIKE 'idle in transaction%'"
    deadline = time.monotonic() + within_s
    try:
        begun = set(await connection.fetch(waiting))
        while begun & set(await connection.fetch(waiting)):
            assert time.monotonic() < deadline, "a transaction is held"
            await asyncio.sleep(0.01)
    finally:
        await connection.close()
