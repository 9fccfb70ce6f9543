"""What is refused before anything is sent, and how Milvus's failures are told."""

from uuid import UUID, uuid4

import grpc
import msgspec
import numpy as np
import pytest
from pymilvus import MilvusException

from memplane_core.domain.errors import IndexUnavailable
from memplane_core.domain.index import FloatArray, Generation, IndexFilter, IndexKey, IndexRow
from memplane_core.domain.tenancy import TenantId
from memplane_core.settings import MilvusSettings
from memplane_core.testing.ports import reserved_port
from memplane_core.testing.rows import index_row, unit_vectors
from memplane_core.vectors import CollectionAbsent, CollectionNotLoaded, MilvusIndex
from memplane_core.vectors.expressions import any_key, is_narrow, quoted, superset
from memplane_core.vectors.faults import translated
from memplane_core.vectors.schema import build_params, search_params

DIM = 4


@pytest.fixture
def generation() -> Generation:
    return Generation(
        tenant=TenantId(uuid4()), number=2, model="m", dim=DIM, index_type="HNSW", index_params={"M": 8}, state="absent"
    )


@pytest.fixture
def nowhere() -> MilvusIndex:
    """An index whose server does not exist: whatever it refuses, it refuses by itself."""
    return MilvusIndex(MilvusSettings(uri=f"http://127.0.0.1:{reserved_port()}", timeout_s=1))


class TestExpressions:
    def test_every_part_of_a_filter_is_anded(self) -> None:
        where = IndexFilter(
            alive_at=5,
            user_id=('a"b\\c\nd',),
            agent_id=("x", "漢"),
            session_id=("",),
            memory_type=("insight",),
            occurred_from=-7,
            occurred_to=9,
        )
        assert superset(where) == (
            r'expires_at > 5 and user_id == "a\"b\\c\nd" and agent_id in ["x", "漢"] and session_id == ""'
            ' and memory_type == "insight" and occurred_at >= -7 and occurred_at <= 9'
        )

    def test_an_empty_list_matches_nothing_and_none_matches_all(self) -> None:
        assert superset(IndexFilter(alive_at=1, agent_id=())) is None
        assert superset(IndexFilter(alive_at=1)) == "expires_at > 1"

    def test_keys_are_looked_up_by_primary_key(self) -> None:
        assert any_key([IndexKey(UUID(int=1), 2, 3)]) == f'id in ["{"0" * 31}1_2_3"]'

    @pytest.mark.parametrize("text", ["a\0b", "lone \ud800 surrogate"])
    def test_text_that_no_store_can_hold_is_refused(self, text: str) -> None:
        with pytest.raises(ValueError, match=r"NUL|surrogates"):
            quoted(text)

    @pytest.mark.parametrize("time", [-(2**63), 2**63])
    def test_a_time_that_a_server_cannot_read_is_refused(self, time: int) -> None:
        with pytest.raises(ValueError, match="out of range"):
            superset(IndexFilter(alive_at=time))


class TestBuildParams:
    def test_what_a_generation_does_not_say_has_a_default_and_nprobe_is_for_searching(
        self, generation: Generation
    ) -> None:
        assert build_params(generation) == {"M": 8, "efConstruction": 400}
        flat = msgspec.structs.replace(generation, index_type="IVF_FLAT", index_params={"nprobe": 5})
        assert build_params(flat) == {"nlist": 128}


class TestSearchParams:
    def test_ef_is_never_below_the_limit(self, generation: Generation) -> None:
        def ef(limit: int, *, filtered: bool) -> object:
            return search_params(generation, limit=limit, filtered=filtered, ef=128, nprobe=32)["params"]

        assert ef(10, filtered=False) == ef(10, filtered=True) == {"ef": 128}
        assert (ef(800, filtered=False), ef(800, filtered=True)) == ({"ef": 800}, {"ef": 3_200})
        assert ef(16_384, filtered=True) == {"ef": 32_768}

    def test_a_filter_is_narrow_unless_it_asks_for_the_living_alone(self) -> None:
        assert not is_narrow(IndexFilter(alive_at=7))
        assert is_narrow(IndexFilter(alive_at=7, user_id=("a",)))
        assert is_narrow(IndexFilter(alive_at=7, occurred_to=5))

    @pytest.mark.parametrize(("params", "nprobe"), [({"nlist": 64}, 32), ({"nlist": 64, "nprobe": 5}, 5)])
    def test_nprobe_is_the_settings_unless_the_generation_has_its_own(
        self, generation: Generation, params: dict[str, int], nprobe: int
    ) -> None:
        flat = msgspec.structs.replace(generation, index_type="IVF_FLAT", index_params=params)
        found = search_params(flat, limit=10, filtered=True, ef=128, nprobe=32)
        assert found == {"metric_type": "COSINE", "params": {"nprobe": nprobe}}


@pytest.mark.anyio
class TestRefusals:
    @pytest.mark.parametrize(
        ("bad", "why"),
        [
            (np.array([1, np.nan, 0, 0], np.float32), "NaN"),
            (np.array([1, np.inf, 0, 0], np.float32), "NaN or infinity"),
            (np.zeros(DIM, np.float32), "zeros"),
            (np.ones(DIM - 1, np.float32), r"shape \(3,\), not \(4,\)"),
            (np.ones((1, DIM), np.float32), r"shape \(1, 4\)"),
        ],
    )
    async def test_a_bad_vector(self, nowhere: MilvusIndex, generation: Generation, bad: FloatArray, why: str) -> None:
        good = unit_vectors(1, DIM)[0]
        with pytest.raises(ValueError, match=why):
            await nowhere.upsert(generation.tenant, generation, [index_row(1, good), index_row(2, bad)])
        with pytest.raises(ValueError, match=why):
            await nowhere.search(generation.tenant, generation, bad, limit=1, where=IndexFilter(alive_at=0))

    @pytest.mark.parametrize(
        ("row", "why"),
        [
            (index_row(1, unit_vectors(1, DIM)[0], user_id="漢" * 86), "user_id has 258 bytes of UTF-8; 256 fit"),
            (index_row(1, unit_vectors(1, DIM)[0], memory_type="x" * 257), "memory_type has 257 bytes"),
            (index_row(1, unit_vectors(1, DIM)[0], agent_id="\ud800"), "surrogates"),
            (index_row(1, unit_vectors(1, DIM)[0], rev=10**40), "id has"),
            (index_row(1, unit_vectors(1, DIM)[0], occurred_at=2**63), "occurred_at"),
        ],
    )
    async def test_a_value_that_does_not_fit(
        self, nowhere: MilvusIndex, generation: Generation, row: IndexRow, why: str
    ) -> None:
        with pytest.raises(ValueError, match=why):
            await nowhere.upsert(generation.tenant, generation, [row])

    async def test_the_same_key_twice(self, nowhere: MilvusIndex, generation: Generation) -> None:
        row = index_row(1, unit_vectors(1, DIM)[0])
        with pytest.raises(ValueError, match="same key"):
            await nowhere.upsert(generation.tenant, generation, [row, row])

    @pytest.mark.parametrize("limit", [0, -1, 16_385])
    async def test_a_limit_out_of_range(self, nowhere: MilvusIndex, generation: Generation, limit: int) -> None:
        vector = unit_vectors(1, DIM)[0]
        with pytest.raises(ValueError, match="limit"):
            await nowhere.search(generation.tenant, generation, vector, limit=limit, where=IndexFilter(alive_at=0))


class TestFaults:
    @pytest.mark.parametrize(
        ("raised", "told"),
        [
            (MilvusException(100, "collection not found"), CollectionAbsent),
            (MilvusException(1, "can't find collection", 4), CollectionAbsent),
            (MilvusException(101, "collection not loaded"), CollectionNotLoaded),
            (MilvusException(103, "collection not fully loaded"), CollectionNotLoaded),
            (MilvusException(65535, "something else"), IndexUnavailable),
            (MilvusException(grpc.StatusCode.UNAVAILABLE, "gave up"), IndexUnavailable),  # pyright: ignore[reportArgumentType]
            (grpc.RpcError(), IndexUnavailable),
            (TimeoutError(), IndexUnavailable),
        ],
    )
    def test_every_failure_is_an_unavailable_index(self, raised: Exception, told: type[IndexUnavailable]) -> None:
        with pytest.raises(IndexUnavailable) as error, translated("searching"):
            raise raised
        assert type(error.value) is told
        assert error.value.detail.startswith("searching: ")
        assert error.value.retry_after
        assert error.value.__cause__ is raised

    def test_our_own_mistakes_are_not_hidden(self) -> None:
        with pytest.raises(KeyError), translated("searching"):
            raise KeyError("a mistake")
