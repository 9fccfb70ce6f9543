"""What the spine's scenarios share."""

import time
from collections.abc import Callable, Generator
from typing import Any

import httpx2
import pytest
from anyio.from_thread import start_blocking_portal

from memplane_core.testing.chat import Question, ScriptedChat, insights
from memplane_core.testing.collector import TraceCollector
from memplane_core.testing.milvus_lite import MilvusLite
from memplane_core.testing.stack import Stack

WORDS = (
    *("harbour", "lantern", "maple", "violin", "glacier", "saffron", "orchard", "compass", "meadow", "thunder"),
    *("velvet", "anchor", "copper", "willow", "falcon", "marble", "ginger", "canyon", "ribbon", "cedar"),
)


def sentence(n: int) -> str:
    """The n-th of many short texts that a model can tell apart."""
    a, b, c = WORDS[n % 20], WORDS[n // 20 % 20], WORDS[n // 400 % 20]
    return f"Note {n}: the {a} next to the {b} belongs to {c} number {n * 7919 % 10_007}."


def until(condition: Callable[[], bool], *, within_s: float, what: str) -> None:
    """Return once `condition()` holds; fail after `within_s`."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {within_s:g} s"
        time.sleep(0.1)


def all_memories(client: httpx2.Client) -> list[dict[str, Any]]:
    """Every memory of the tenant, page by page."""
    found: list[dict[str, Any]] = []
    cursor: str | None = None
    while True:
        query: dict[str, str | int] = {"limit": 1000} | ({"cursor": cursor} if cursor else {})
        page = client.get("/v1/memories", params=query).raise_for_status().json()
        found += page["results"]
        cursor = page["next_cursor"]
        if cursor is None:
            return found


def recalled(client: httpx2.Client, text: str, *, top_k: int = 5) -> list[str]:
    """Ids of what is recalled for `text`."""
    answer = client.post("/v1/memories/search", json={"query": text, "top_k": top_k, "touch": False})
    return [result["id"] for result in answer.raise_for_status().json()["results"]]


def all_indexed(client: httpx2.Client) -> bool:
    """Whether the index knows every memory."""
    return all(memory["index_state"] == "indexed" for memory in all_memories(client))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show what the services said when a scenario fails."""
    report = yield
    stack = getattr(item, "funcargs", {}).get("stack")
    if report.failed and isinstance(stack, Stack):
        report.sections.append(("services", stack.logs()))
    return report


@pytest.fixture(scope="session")
def chat() -> Generator[ScriptedChat]:
    """The language model of the stack: to it all is an 8, and the first two memories say that somebody likes notes."""

    def say(question: Question) -> str:
        return "8" if "memory" in question.data else insights(("They like notes.", [1, 2]))

    scripted = ScriptedChat(say)
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(scripted.running()):
        yield scripted


@pytest.fixture(scope="session")
def collector() -> Generator[TraceCollector]:
    """Gets the spans of what a caller of the stack has traced: of itself it traces nothing."""
    with TraceCollector() as started:
        yield started


@pytest.fixture(scope="session")
def stack(chat: ScriptedChat, collector: TraceCollector) -> Generator[Stack]:
    """Over Milvus Lite, with two doors. Every scenario makes its own tenant, and leaves all parts running.

    The worker has threads for a job of each kind, and what it holds is free soon after it has died.
    """
    env = {
        "MEMPLANE_LLM__URL": chat.url,
        "MEMPLANE_LLM__MODEL": "scripted",
        "MEMPLANE_POSTGRES__POOL_MAX": "20",
        "MEMPLANE_POSTGRES__STATEMENT_TIMEOUT_S": "30",
        "MEMPLANE_WORKER__CONCURRENCY": "12",
        "MEMPLANE_WORKER__LEASE_S": "21",
        "MEMPLANE_TRACE__ENDPOINT": collector.url,
        "MEMPLANE_TRACE__SAMPLE_RATIO": "0",
    }
    with Stack(MilvusLite(), doors=2, env=env) as started:
        yield started
