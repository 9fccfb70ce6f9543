"""What a collection looks like: its columns, its index, and what a search tells it."""

from typing import Final

import numpy as np
from pymilvus import CollectionSchema, DataType, MilvusClient
from pymilvus.milvus_client import IndexParams

from memplane_core.domain.index import FloatArray, Generation, IndexRow
from memplane_core.domain.indexing import MAX_EF, default_index_params

KEY: Final = "id"
VECTOR: Final = "vector"
METRIC: Final = "COSINE"

_KEY_BYTES = 64
_STRING_BYTES = 256
_STRINGS: Final = ("user_id", "agent_id", "session_id", "memory_type")
_TIMES: Final = ("occurred_at", "expires_at")
FIELDS: Final = frozenset((KEY, VECTOR, *_STRINGS, *_TIMES))
_FILTERED: Final = 4
_INT64 = range(-(2**63), 2**63)


def collection_schema(dim: int) -> CollectionSchema:
    """Plain columns that are never null and no dynamic field: what every Milvus from 2.3 to 3.0 and Lite agree on."""
    schema = MilvusClient.create_schema(auto_id=False, enable_dynamic_field=False)
    schema.add_field(KEY, DataType.VARCHAR, is_primary=True, max_length=_KEY_BYTES)
    schema.add_field(VECTOR, DataType.FLOAT_VECTOR, dim=dim)
    for name in _STRINGS:
        schema.add_field(name, DataType.VARCHAR, max_length=_STRING_BYTES)
    for name in _TIMES:
        schema.add_field(name, DataType.INT64)
    return schema


def index_params(generation: Generation) -> IndexParams:
    """How the vectors are indexed: once for the life of the generation."""
    params = MilvusClient.prepare_index_params()
    params.add_index(VECTOR, index_type=generation.index_type, metric_type=METRIC, params=build_params(generation))
    return params


def build_params(generation: Generation) -> dict[str, int]:
    """The generation's parameters that its index is built with, and defaults, which no Milvus has for HNSW.

    `nprobe` among them is for searching.
    """
    given = {name: value for name, value in generation.index_params.items() if name != "nprobe"}
    return default_index_params(generation.index_type) | given


def search_params(generation: Generation, *, limit: int, filtered: bool, ef: int, nprobe: int) -> dict[str, object]:
    """How far a search looks.

    `nprobe` lists of IVF_FLAT, unless the generation has its own. At least `ef` rows of HNSW and never fewer than
    `limit`; four times as many under a filter, for what does not pass it takes up room on the way.
    """
    match generation.index_type:
        case "HNSW":
            params = {"ef": min(MAX_EF, max(ef, limit * _FILTERED if filtered else limit))}
        case "IVF_FLAT":
            params = {"nprobe": generation.index_params.get("nprobe", nprobe)}
        case _:
            params = {}
    return {"metric_type": METRIC, "params": params}


def record(row: IndexRow, dim: int) -> dict[str, object]:
    """A row as pymilvus takes it.

    Raises:
        ValueError: A string is longer than its column in UTF-8, a time is no 64-bit integer, or `checked_vector`'s.
    """
    values: dict[str, object] = {KEY: _text(KEY, str(row.key), _KEY_BYTES), VECTOR: checked_vector(row.vector, dim)}
    for name in _STRINGS:
        values[name] = _text(name, getattr(row, name), _STRING_BYTES)
    for name in _TIMES:
        value: int = getattr(row, name)
        if value not in _INT64:
            raise ValueError(f"{name} {value!r} is not a 64-bit integer")
        values[name] = value
    return values


def checked_vector(vector: FloatArray, dim: int) -> FloatArray:
    """The vector as float32. Lite would take any, and a server's refusal comes late and names no row.

    Raises:
        ValueError: Its shape is not (dim,), it holds NaN or infinity, or it is all zeros, which has no cosine.
    """
    if vector.shape != (dim,):
        raise ValueError(f"a vector has the shape {vector.shape}, not ({dim},)")
    vector = np.ascontiguousarray(vector, dtype=np.float32)
    square = float(vector @ vector)
    if not np.isfinite(square):
        raise ValueError("a vector holds NaN or infinity")
    if square == 0:
        raise ValueError("a vector is all zeros")
    return vector


def _text(name: str, text: str, limit: int) -> str:
    """Lite counts characters where a server counts bytes, so both limits are ours to keep."""
    size = len(text.encode())
    if size > limit:
        raise ValueError(f"{name} has {size} bytes of UTF-8; {limit} fit")
    return text
