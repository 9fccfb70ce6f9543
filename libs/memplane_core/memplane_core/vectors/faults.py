"""What went wrong with Milvus, said as an error of ours."""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

import grpc
import grpc.aio
from pymilvus import MilvusException

from memplane_core.domain.errors import IndexUnavailable

_ABSENT: Final = 100
_ABSENT_BEFORE_2_3: Final = 4
_NOT_LOADED: Final = frozenset((101, 103))
"""Not loaded, and loaded in part."""


class CollectionAbsent(IndexUnavailable):
    """There is no such collection: `ensure` makes it."""


class CollectionNotLoaded(IndexUnavailable):
    """The collection is there and cannot be read yet."""


@contextmanager
def translated(doing: str) -> Generator[None]:
    """Turn every way in which pymilvus fails inside the `with` into an IndexUnavailable.

    Milvus's own words are in the cause, for logs; the message is fit for callers.

    Args:
        doing: What was being done, as in "searching".
    """
    try:
        yield
    except MilvusException as error:
        raise _from_milvus(doing, error) from error
    except grpc.RpcError as error:
        status = error.code() if isinstance(error, grpc.Call | grpc.aio.AioRpcError) else None
        name = status.name if isinstance(status, grpc.StatusCode) else "an unknown status"
        raise IndexUnavailable(f"{doing}: the vector index ended the call with {name}", retry_after=1) from error
    except grpc.aio.UsageError as error:
        raise IndexUnavailable(f"{doing}: the connection is being replaced", retry_after=1) from error
    except asyncio.CancelledError as error:
        if (task := asyncio.current_task()) is not None and task.cancelling():
            raise
        # Nobody has cancelled us: the channel was closed under the call.
        raise IndexUnavailable(f"{doing}: the connection was replaced", retry_after=1) from error
    except TimeoutError as error:
        raise IndexUnavailable(f"{doing}: the vector index did not answer in time", retry_after=1) from error


def _from_milvus(doing: str, error: MilvusException) -> IndexUnavailable:
    code = error.code  # an int, or the gRPC status where pymilvus gave up retrying
    if code == _ABSENT or error.compatible_code == _ABSENT_BEFORE_2_3:
        return CollectionAbsent(f"{doing}: the collection does not exist yet", retry_after=1)
    if code in _NOT_LOADED:
        return CollectionNotLoaded(f"{doing}: the collection is not loaded yet", retry_after=2)
    if isinstance(code, grpc.StatusCode):
        return IndexUnavailable(f"{doing}: the vector index ended the call with {code.name}", retry_after=1)
    return IndexUnavailable(f"{doing}: the vector index failed with code {int(code)}", retry_after=1)
