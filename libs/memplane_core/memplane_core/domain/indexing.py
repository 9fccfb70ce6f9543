"""How a collection's vectors can be indexed: the types, their parameters and what those may be."""

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple, get_args

IndexType = Literal["HNSW", "IVF_FLAT", "AUTOINDEX"]

INDEX_TYPES: Final[tuple[str, ...]] = get_args(IndexType)

MAX_EF: Final = 32_768
MAX_LISTS: Final = 65_536


class _Parameter(NamedTuple):
    default: int
    least: int
    most: int


# The ranges are those of Milvus 2.3; later versions only widened them. Milvus Lite checks none.
_PARAMETERS: Final[dict[str, dict[str, _Parameter]]] = {
    # With M 16 or 24 some filtered searches of a real server found next to nothing, with 32 none did: docs/milvus.md.
    "HNSW": {"M": _Parameter(32, 4, 64), "efConstruction": _Parameter(400, 8, 512)},
    "IVF_FLAT": {"nlist": _Parameter(128, 1, MAX_LISTS)},
    "AUTOINDEX": {},
}


def default_index_params(index_type: str) -> dict[str, int]:
    """What an index of this type is built with unless told otherwise; nothing for a type that is not known."""
    return {name: parameter.default for name, parameter in _PARAMETERS.get(index_type, {}).items()}


def complete_index_params(index_type: str, given: Mapping[str, int]) -> dict[str, int]:
    """The parameters that an index of this type is built with: those given, and the defaults of the others.

    Raises:
        ValueError: There is no such type or parameter, or a value is out of range; the message says what there is.
    """
    known = _PARAMETERS.get(index_type)
    if known is None:
        raise ValueError(f"there is no index type {index_type!r}; there are {', '.join(INDEX_TYPES)}")
    for name, value in given.items():
        if name not in known:
            of_type = f"it has {' and '.join(known)}" if known else "it has none"
            raise ValueError(f"{index_type} has no build parameter {name!r}; {of_type}")
        least, most = known[name].least, known[name].most
        if not least <= value <= most:
            raise ValueError(f"{name} of {index_type} is {value!r}, not within {least}..{most}")
    return default_index_params(index_type) | dict(given)
