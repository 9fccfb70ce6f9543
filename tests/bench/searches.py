"""Searches through the gateway and at the retrieval service, beside a bare search of the very same collection."""

import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec
from pymilvus import MilvusClient
from tests.bench.cpu import CpuMeter
from tests.bench.ground import WHEN, Ground
from tests.bench.results import Cpu, Row
from tests.bench.texts import SCENES, question, sentence, user
from tests.bench.timing import Turn, interleaved, p50_ms, p95_ms

from memplane_core.contracts.filters import Filters
from memplane_core.contracts.memories import MemoryWrite, SearchRequest, SearchResponse, WrittenMemory
from memplane_core.domain.filters import index_superset, parse_filter
from memplane_core.domain.index import FloatArray, Generation
from memplane_core.vectors import schema
from memplane_core.vectors.expressions import superset

TOP_K: Final = 10
CANDIDATES: Final = 200
"""What a search asks the index for at this `top_k`; the bare one asks for as many."""

QUESTIONS: Final = 400
"""So many that none is asked twice while the index's answer to it is remembered."""
WARM_UP: Final = 5
PEER: Final = "bare Milvus"
INSIDE: Final = "retrieval's code, without HTTP"
RETRIEVAL: Final = "retrieval"
GATEWAY: Final = "gateway"
FILTERED: Final = "search within a scene"
_ROUTE: Final = "/v1/memories/search"

Search = Callable[[SearchRequest], Awaitable[object]]
"""A search by the code of the retrieval service, in this process."""


class BareMilvus:
    """The collection, asked by pymilvus alone."""

    def __init__(self, uri: str, generation: Generation, *, search_ef: int) -> None:
        self._client: Any = MilvusClient(uri=uri)  # whose types are unknown in part
        self._collection = generation.collection
        self._generation = generation
        self._search_ef = search_ef

    def search(self, vector: FloatArray, where: Filters) -> int:
        """How many were found."""
        seen = index_superset(parse_filter(where), alive_at=int(time.time()))
        found = self._client.search(
            self._collection,
            data=[vector],
            filter=superset(seen) or "",
            limit=CANDIDATES,
            output_fields=[schema.KEY],
            search_params=schema.search_params(
                self._generation, limit=CANDIDATES, filtered=bool(where), ef=self._search_ef, nprobe=16
            ),
            anns_field=schema.VECTOR,
            consistency_level="Bounded",
        )
        return len(found[0])

    def close(self) -> None:
        """Give back the connection."""
        self._client.close()


async def compared(ground: Ground, scenario: str, where: Filters, *, rounds: int, inside: Search) -> list[Row]:
    """Bare, inside, retrieval and gateway in turn; the last has a retrieval service of its own behind it.

    The vector of every question is cached, and no answer of the index is: each was asked before for other candidates,
    and is asked once.

    Raises:
        RuntimeError: An answer was degraded, or had fewer than it was asked for.
    """
    generation = await ground.generation()
    asked = range(min(QUESTIONS, rounds + WARM_UP))
    requests = [_request(question(n), where) for n in asked]
    bodies = [msgspec.json.encode(request) for request in requests]
    vectors = [
        await ground.embedder.embed_query(ground.tenant, question(n), model=generation.model, timeout_s=30)
        for n in asked
    ]
    for request in requests:
        known = msgspec.structs.replace(request, top_k=1, candidates=1)
        await inside(known)
        for door in (ground.retrieval, ground.gateways[1]):
            await door.post(_ROUTE, msgspec.json.encode(known))
    _check(await ground.gateways[0].post(_ROUTE, bodies[0]))
    bare = BareMilvus(ground.stack.milvus.uri, generation, search_ef=ground.settings.milvus.search_ef)

    async def bare_turn(turn: int) -> object:
        return bare.search(vectors[turn % len(asked)], where)

    subjects: dict[str, Turn] = {
        PEER: bare_turn,
        INSIDE: lambda turn: inside(requests[turn % len(asked)]),
        RETRIEVAL: lambda turn: ground.retrieval.post(_ROUTE, bodies[turn % len(asked)]),
        GATEWAY: lambda turn: ground.gateways[1].post(_ROUTE, bodies[turn % len(asked)]),
    }
    turns = ground.told.through(range(rounds + WARM_UP), scenario, total=rounds + WARM_UP)
    try:
        seconds = await interleaved(subjects, turns, warm_up=WARM_UP)
    finally:
        bare.close()
    return rows_of(scenario, seconds, peer=PEER)


async def filtered(ground: Ground, *, rounds: int) -> list[Row]:
    """Searches within scenes of the memories, beside one without a filter, all through the gateway.

    Raises as `compared`.
    """
    wheres: dict[str, Filters] = {"no filter": {}} | {f"scene of {name}": {"scene": [name]} for name in SCENES}
    offset = QUESTIONS // 2
    bodies = {
        name: [_body(question(offset + n), where) for n in range(min(offset, rounds + WARM_UP))]
        for name, where in wheres.items()
    }
    for n in range(len(bodies["no filter"])):
        known = msgspec.structs.replace(_request(question(offset + n), {}), top_k=1, candidates=1)
        await ground.gateways[0].post(_ROUTE, msgspec.json.encode(known))
    for several in bodies.values():
        _check(await ground.gateways[1].post(_ROUTE, several[0]))

    def turn_of(name: str) -> Turn:
        return lambda turn: ground.gateways[0].post(_ROUTE, bodies[name][turn % len(bodies[name])])

    turns = ground.told.through(range(rounds + WARM_UP), FILTERED, total=rounds + WARM_UP)
    seconds = await interleaved({name: turn_of(name) for name in wheres}, turns, warm_up=WARM_UP)
    return rows_of(FILTERED, seconds, peer="no filter")


async def through_gateway(ground: Ground, count: int) -> list[Cpu]:
    """What searches cost one after another: with the index asked, and with its answers remembered."""
    bodies = [
        _body(question(n), {"memory_type": {"in": ["experience", "insight"]}}) for n in range(min(count, QUESTIONS))
    ]
    costs: list[Cpu] = []
    for name in ("search", "search, asked a moment ago"):
        meter = CpuMeter()
        for body in bodies:
            await ground.gateways[0].post(_ROUTE, body)
        costs.append(meter.row(name, n=len(bodies)))
    return costs


def rows_of(scenario: str, seconds: dict[str, list[float]], *, peer: str) -> list[Row]:
    """A row a subject, each but the peer compared with the peer."""
    base = p50_ms(seconds[peer])
    return [
        Row(
            scenario=scenario,
            subject=subject,
            n=len(taken),
            p50_ms=p50_ms(taken),
            p95_ms=p95_ms(taken),
            more_ms=None if subject == peer else p50_ms(taken) - base,
            times=None if subject == peer else p50_ms(taken) / base,
        )
        for subject, taken in seconds.items()
    ]


def _request(query: str, where: Filters) -> SearchRequest:
    return SearchRequest(query=query, top_k=TOP_K, filters=where)


def _body(query: str, where: Filters) -> bytes:
    return msgspec.json.encode(_request(query, where))


def _check(answer: bytes) -> None:
    response = msgspec.json.decode(answer, type=SearchResponse)
    if response.degraded or len(response.results) < TOP_K:
        raise RuntimeError(f"a search found {len(response.results)} and was degraded by {response.degraded}")


async def missed(ground: Ground, numbers: range) -> int:
    """Writes by one gateway and its retrieval process that the next search, by the others, does not find."""
    count = 0
    for n in ground.told.through(numbers, "writes, each searched for at once", total=len(numbers)):
        memory = MemoryWrite(content=sentence(n), user_id=user(n), occurred_at=WHEN)
        body = msgspec.json.encode(memory)
        written = msgspec.json.decode(await ground.gateways[0].post("/v1/memories", body), type=WrittenMemory)
        answer = await ground.gateways[1].post(_ROUTE, _body(sentence(n), {}))
        found = msgspec.json.decode(answer, type=SearchResponse).results
        count += written.id not in {result.id for result in found}
    return count
