"""Loads a conversation into a running platform and asks it questions."""

import time
from collections.abc import Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from memplane_core.contracts.memories import (
    BatchWrite,
    BatchWritten,
    EntityFilter,
    FoundMemory,
    MemoryWrite,
    SearchRequest,
    SearchResponse,
)
from memplane_standalone.admin import Api
from memplane_standalone.demo.conversations import Conversation, Question, memories, spread

_BATCH = 50
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
            await api.post("/v1/memories/batch", BatchWrite(memories=batch, wait="index"), BatchWritten)
            progress.advance(task, len(batch))


def _request(conversation: Conversation, question: Question) -> SearchRequest:
    return SearchRequest(
        query=question.text, top_k=_TOP, filters=EntityFilter(user_id=conversation.id), touch=False, explain=True
    )


def _is_evidence(found: FoundMemory, question: Question) -> bool:
    return found.external_id in question.evidence


def _table(question: Question, answer: SearchResponse, *, milliseconds: float) -> Table:
    degraded = f", degraded: {' '.join(answer.degraded)}" if answer.degraded else ""
    title = f"{question.text}  ({milliseconds:.0f} ms{degraded})"
    table = Table(title=title, title_justify="left", title_style="bold", expand=True)
    table.add_column("", width=1)
    for name in ("score", "match", "cosine", "recency", "import.", "prio."):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("from", no_wrap=True)
    table.add_column("turn", no_wrap=True)
    table.add_column("memory", ratio=1, no_wrap=True, overflow="ellipsis")
    for found in answer.results:
        evidence = _is_evidence(found, question)
        table.add_row(
            "*" if evidence else "",
            f"{found.score:.3f}",
            *_parts(found),
            found.external_id or "",
            f"{found.actor}: {found.content}",
            style="green" if evidence else "",
        )
    return table


def _parts(found: FoundMemory) -> tuple[str, ...]:
    if not found.explain:
        return ("", "", "", "", "", "")
    parts = found.explain
    numbers = (parts.match, parts.cosine, parts.recency, parts.importance, parts.priority)
    return (*(f"{number:.3f}" for number in numbers), parts.origin)
