"""`memplane up` with stores that are there already: it starts none of its own, and makes roles and database there."""

from pathlib import Path

from tests.e2e.conftest import Platform

from memplane_core.testing.milvus_lite import MilvusLite
from memplane_core.testing.postgres import PostgresServer
from memplane_core.testing.valkey import ValkeyServer


def test_given_stores_are_used_instead_of_embedded_ones(tmp_path: Path) -> None:
    with PostgresServer() as postgres, ValkeyServer() as valkey, MilvusLite(tmp_path / "milvus") as milvus:
        options = ("--database-url", postgres.superuser_url(), "--redis-url", valkey.url, "--milvus-uri", milvus.uri)
        platform = Platform(tmp_path / "home", options=options)
        try:
            platform.start()
            own = [name for name in ("postgres", "valkey", "milvus") if platform.runs(name)]
            assert own == []
            memory = {"content": "the kettle is blue", "user_id": "u"}
            batch = {"memories": [memory], "wait": "index"}
            with platform.client() as client:
                written = client.post("/v1/memories/batch", json=batch).json()["results"][0]
                found = client.post("/v1/memories/search", json={"query": "kettle"}).json()["results"]
            assert written["index_state"] == "indexed"
            assert [one["content"] for one in found] == ["the kettle is blue"]
        finally:
            platform.stop()
