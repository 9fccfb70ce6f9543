"""Searches as bytes on the wire, there and back.

pymilvus makes an object of each row that is found, asks its clock and its caches: more than a millisecond of a search
for what is a list of keys here. So the request is put together, and the answer read, with its gRPC messages alone.
"""

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from pymilvus.client.utils import check_status
from pymilvus.grpc_gen.common_pb2 import (
    BoolExprV1,
    Bounded,
    FloatVector,
    KeyValuePair,
    PlaceholderGroup,
    PlaceholderValue,
)
from pymilvus.grpc_gen.milvus_pb2 import SearchRequest, SearchResults

from memplane_core.domain.index import FloatArray
from memplane_core.vectors import schema

_LATEST_BUT_BOUNDED: Final = 2
"""The timestamp by which a client asks for bounded staleness."""


def search_request(
    collection: str, vectors: Sequence[FloatArray], *, expression: str, limit: int, params: dict[str, object]
) -> SearchRequest:
    """What asks for the nearest rows to each float32 vector at bounded staleness, with `schema.search_params`."""
    place = PlaceholderValue(tag="$0", type=FloatVector, values=[vector.tobytes() for vector in vectors])
    pairs = {
        "anns_field": schema.VECTOR,
        "topk": str(limit),
        "metric_type": schema.METRIC,
        "params": json.dumps(params["params"]),
        "round_decimal": "-1",
        "ignore_growing": "False",
    }
    return SearchRequest(
        collection_name=collection,
        dsl=expression,
        dsl_type=BoolExprV1,
        placeholder_group=PlaceholderGroup(placeholders=[place]).SerializeToString(),
        nq=len(vectors),
        output_fields=[schema.KEY],  # without any, Lite returns the vectors
        search_params=[KeyValuePair(key=key, value=value) for key, value in pairs.items()],
        consistency_level=Bounded,
        guarantee_timestamp=_LATEST_BUT_BOUNDED,
    )


def found_keys(answer: SearchResults) -> list[list[str]]:
    """The keys found for each vector, best first. Raises MilvusException where it tells of a failure."""
    check_status(answer.status)
    keys = list(answer.results.ids.str_id.data)
    ends = [0]
    for count in answer.results.topks:
        ends.append(ends[-1] + count)
    return [keys[start:end] for start, end in pairwise(ends)]
