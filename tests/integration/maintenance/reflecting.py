"""A tenant whose memories a scripted language model is asked about, run by run."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

from memplane_core.clients.chat import ChatModel
from memplane_core.contracts.policy import MaintenancePolicy
from memplane_core.contracts.reflect_runs import ReflectStart, reflect_params
from memplane_core.domain.memory import Memory
from memplane_core.storage import history, memories
from memplane_core.storage.jobs import JobRecord, ask_cancel, create_job, get_job
from memplane_core.storage.session import Database
from memplane_core.testing.chat import Question, ScriptedChat
from memplane_core.testing.memories import MemoryDesk
from memplane_core.testing.rows import eventually
from memplane_maintenance.jobs import JobRunner, RunReport
from memplane_maintenance.jobs.reflect import Reflect


class Reflecting:
    """A tenant, a model, and a worker that does not wait for what is being written."""

    def __init__(self, desk: MemoryDesk, chat: ScriptedChat, model: ChatModel | None) -> None:
        self.desk = desk
        self.chat = chat
        self.model = model
        self.runner = self.worker(desk.database)

    def worker(self, database: Database) -> JobRunner:
        """Another worker, whose database may be in trouble."""
        return JobRunner(database, {"reflect": Reflect(database, self.model, settle_s=0)})

    async def ask(self, *, dry_run: bool = False, **rules: Any) -> UUID:
        """Queue a run."""
        given: dict[str, Any] = {"threshold": 1.0, **rules}
        params = reflect_params(MaintenancePolicy(), ReflectStart(**given))
        async with self.desk.database.tenant(self.desk.tenant) as connection:
            job = await create_job(
                self.desk.tenant, connection, kind="reflect", params=params, dry_run=dry_run, started_by="somekey"
            )
        return job.id

    async def slice(self, job_id: UUID, runner: JobRunner | None = None) -> RunReport:
        """One slice of it, as if its time had come."""
        await self.desk.pass_time()
        await self.sql("UPDATE job SET not_before = clock_timestamp()")
        return await (runner or self.runner).run(self.desk.tenant, job_id)

    async def finish(self, job_id: UUID) -> JobRecord:
        """Slices until it has ended well."""
        for _ in range(20):
            if (await self.slice(job_id)).ended:
                break
        job = await self.job(job_id)
        assert job.state == "done", job
        return job

    async def run(self, *, dry_run: bool = False, **rules: Any) -> dict[str, int]:
        """A whole run; what it counted that is not 0, without what it cost."""
        result = (await self.finish(await self.ask(dry_run=dry_run, **rules))).result
        cost = () if dry_run else ("questions", "prompt_tokens", "completion_tokens")
        return {name: count for name, count in result.items() if count and name not in cost}

    @asynccontextmanager
    async def waiting(self, **rules: Any) -> AsyncGenerator[UUID]:
        """A run whose worker waits for the model's answers; it comes to the end of its slice when the block has."""
        before = len(self.chat.questions)
        job_id = await self.ask(**rules)
        self.chat.holds.clear()
        working = asyncio.create_task(self.slice(job_id))
        await eventually(self.chat.asked, lambda asked: asked > before)
        try:
            yield job_id
        finally:
            self.chat.holds.set()
            await working

    def asked_about(self) -> list[str]:
        """The texts that all questions so far have shown, each as often as it was shown."""
        return [text for question in self.chat.questions for text in shown_to(question)]

    async def job(self, job_id: UUID) -> JobRecord:
        """The run as it is."""
        async with self.desk.database.tenant(self.desk.tenant) as connection:
            job = await get_job(self.desk.tenant, connection, job_id)
        assert job is not None
        return job

    async def cancel(self, job_id: UUID) -> None:
        """Ask it to end."""
        async with self.desk.database.tenant(self.desk.tenant) as connection:
            await ask_cancel(self.desk.tenant, connection, job_id)

    async def sql(self, statement: str, *args: object) -> list[Any]:
        """Do something to the tenant's rows that no service does."""
        async with self.desk.database.tenant(self.desk.tenant) as connection:
            return await connection.fetch(statement, *args)

    async def memory(self, memory_id: UUID) -> Memory:
        """A memory as it is."""
        async with self.desk.database.tenant(self.desk.tenant) as connection:
            return (await memories.read(self.desk.tenant, connection, [memory_id]))[memory_id]

    async def insights(self) -> list[Memory]:
        """All there are, the oldest first."""
        return [await self.memory(memory_id) for memory_id in await self.insights_stored()]

    async def insights_stored(self) -> list[UUID]:
        """Ids of all there are, expired ones too."""
        rows = await self.sql("SELECT id FROM memory WHERE memory_type = 'insight' ORDER BY id")
        return [row["id"] for row in rows]

    async def history(self, memory_id: UUID) -> list[tuple[str, str, str, dict[str, Any]]]:
        """What its history says, the newest first: event, key, request, old values."""
        async with self.desk.database.tenant(self.desk.tenant) as connection:
            page = await history.history_page(self.desk.tenant, connection, memory_id, before=None, limit=50)
        return [(entry.event, entry.key_id, entry.request_id, entry.changes) for entry in page]


def is_score(question: Question) -> bool:
    """Whether it asks for a score."""
    return "memory" in question.data


def shown_to(question: Question) -> Sequence[str]:
    """The texts that a question shows."""
    if "memory" in question.data:
        return [question.data["memory"]["text"]]
    return [memory["text"] for memory in question.data.get("memories", [])]
