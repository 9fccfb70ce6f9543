"""Loads a conversation into a running platform and asks it questions."""

import time
from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from memplane_core.contracts.memories import (
    BatchWrite,
    BatchWritten,
    FoundMemory,
    MemoryWrite,
    SearchRequest,
    SearchResponse,
)
from memplane_standalone.admin import Api
from memplane_standalone.demo.conversations import Conversation, Question, memories, spread

_BATCH = 100
_TOP = 5
_QUESTIONS = 5


async def run_demo(api: Api, conversation: Conversation, *, console: Console) -> int:
    """Write every turn, ask five questions, print what is recalled.

    Returns:
        For how many questions a turn that answers it was among the first five.
    """
    await _load(api, memories(conversation), console=console)
    questions = spread(conversation.questions, _QUESTIONS)
    hits = 0
    for question in questions:
        began = time.monotonic()
        answer = await api.post("/v1/memories/search", _request(conversation, question), SearchResponse)
        milliseconds = (time.monotonic() - began) * 1000
        console.print(_table(question, answer, milliseconds=milliseconds))
        hits += any(_is_evidence(found, question) for found in answer.results)
    console.print(f"evidence in the top {_TOP}: {hits} of {len(questions)} questions", highlight=False)
    return hits


async def _load(api: Api, writes: Sequence[MemoryWrite], *, console: Console) -> None:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("remembering", total=len(writes))
        for start in range(0, len(writes), _BATCH):
            batch = list(writes[start : start + _BATCH])
            # What is written can be recalled at once; waiting for the last shows how long the index takes for all.
            wait = "index" if start + _BATCH >= len(writes) else None
            await api.post("/v1/memories/batch", BatchWrite(memories=batch, wait=wait), BatchWritten)
            progress.advance(task, len(batch))


def _request(conversation: Conversation, question: Question) -> SearchRequest:
    return SearchRequest(
        query=question.text, top_k=_TOP, filters={"user_id": conversation.id}, touch=False, explain=True
    )


def _is_evidence(found: FoundMemory, question: Question) -> bool:
    return found.external_id in question.evidence


def _table(question: Question, answer: SearchResponse, *, milliseconds: float) -> Table:
    degraded = f", degraded: {' '.join(answer.degraded)}" if answer.degraded else ""
    title = f"{question.text}  ({milliseconds:.0f} ms{degraded})"
    table = Table(title=Text(title, style="bold"), title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("", width=1)
    for name in ("score", "match", "cos.", "rec.", "imp.", "prio"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("from", no_wrap=True)
    table.add_column("turn", no_wrap=True)
    table.add_column("memory", min_width=30)
    for found in answer.results:
        evidence = _is_evidence(found, question)
        table.add_row(
            "*" if evidence else "",
            f"{found.score:.2f}",
            *_parts(found),
            found.external_id or "",
            Text(f"{found.actor}: {found.content}"),
            style="green" if evidence else "",
        )
    return table


def _parts(found: FoundMemory) -> tuple[str, ...]:
    if not found.explain:
        return ("", "", "", "", "", "")
    parts = found.explain
    numbers = (parts.match, parts.cosine, parts.recency, parts.importance, parts.priority)
    return (*(f"{number:.2f}" for number in numbers), parts.origin)
