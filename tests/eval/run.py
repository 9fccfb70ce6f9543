"""One model: the platform started, the sets written and searched."""

import asyncio
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from tests.bench.progress import Told
from tests.eval.api import FRESH_S, Api, SearchOptions
from tests.eval.catalog import sets_for
from tests.eval.results import ModelResult, result_of
from tests.eval.sets import Collection, EvalSet

from memplane_core.testing.stack import Stack

DOORS: Final = 2
TOP_K: Final = 50
TOP_K_WITH_SESSIONS: Final = 100
"""Results asked for: enough for ten sessions to be among them."""


async def evaluate(
    stack: Stack, model: str, sets: Sequence[EvalSet], *, options: SearchOptions, told: Told
) -> ModelResult:
    """All that makes sense for the model, each collection in a tenant of its own.

    Args:
        stack: Running, with `model` as its default.
        model: Its name.
        sets: To choose from.
        options: Of every search.
        told: Hears how far things are.
    """
    chosen = sets_for(model, sets)
    collections = {one.collection.name: one.collection for one in chosen}
    apis: dict[str, Api] = {}
    result = ModelResult()
    try:
        for collection in collections.values():
            apis[collection.name] = await _written(stack, collection, told=told)
        await asyncio.sleep(FRESH_S)
        now = datetime.now(UTC)
        for one in chosen:
            await _searched(apis[one.collection.name], one, result, now=now, options=options, told=told)
    finally:
        for api in apis.values():
            await api.close()
    return result


async def _written(stack: Stack, collection: Collection, *, told: Told) -> Api:
    given = await asyncio.to_thread(stack.make_tenant, collection.name)
    api = Api([gateway.url for gateway in stack.gateways], given.key)
    began, count = time.monotonic(), len(collection.memories)
    with told.bar(f"writing {collection.name}", total=count) as bar:
        await api.write(collection.memories, bar)
    told.step(f"{collection.name}: {count:,} memories written and indexed in {time.monotonic() - began:.0f} s")
    return api


async def _searched(
    api: Api, one: EvalSet, result: ModelResult, *, now: datetime, options: SearchOptions, told: Told
) -> None:
    began, count = time.monotonic(), len(one.questions)
    with told.bar(f"searching {one.key}", total=count) as bar:
        top_k = TOP_K_WITH_SESSIONS if one.collection.session_of else TOP_K
        ranked = await api.search(one.questions, bar, now=now, top_k=top_k, options=options)
    result.keep(one.key, result_of(one, ranked))
    scores = result.scores(one.key)
    assert scores is not None, "it has just been kept"
    told.step(
        f"{one.key}: {count:,} questions in {time.monotonic() - began:.0f} s, "
        f"recall@10 {scores.recall_10:.1f}, nDCG@10 {scores.ndcg_10:.1f}"
    )
