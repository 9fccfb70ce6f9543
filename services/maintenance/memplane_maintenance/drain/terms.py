"""The words of a drain: its limits, what it reports, and why it may stop."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final, Literal, Protocol, TypeVar

import msgspec

T = TypeVar("T")


class Tried(Protocol):
    """Something with a count of the tries in vain."""

    @property
    def attempts(self) -> int:
        """How many."""
        ...


DRAIN_LEASE: Final = "drain"

Obstacle = Literal["index", "embedding", "database", "lease", "contention", "internal"]


class DrainLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How long and how much.

    Attributes:
        lease_s: For how long a tenant is taken at a time; longer than `rpc_timeout_s`.
        slice_s: After this long no new batch is begun.
        rpc_timeout_s: After this long a call to the index can no longer take effect.
        fresh_s: For how long Postgres answers for rows that the index has taken.
        embed_timeout_s: For one group of texts.
        embed_texts: Most texts of a group.
        embed_bytes: Most bytes of a group, unless it is a single text.
        pause_s: For how long a tenant is left alone after an error that nobody foresaw.
    """

    lease_s: float = 30.0
    slice_s: float = 10.0
    rpc_timeout_s: float = 20.0
    fresh_s: float = 10.0
    embed_timeout_s: float = 30.0
    embed_texts: int = 128
    embed_bytes: int = 128 * 1024
    pause_s: float = 5.0


class DrainReport(msgspec.Struct, kw_only=True):
    """What a slice did.

    Attributes:
        taken: False where another drain of the tenant was under way, or the tenant is left alone for a while.
        indexed: Revisions that the index holds now and that are current.
        overtaken: Revisions that were out of date before or after they were sent.
        refused: Revisions that can never be indexed.
        embedded: Memories whose chunks were embedded.
        removed: Revisions that the index was told to lose.
        obstacle: What cut the slice short, if anything did.
        more: Something is due right now.
    """

    taken: bool = True
    indexed: int = 0
    overtaken: int = 0
    refused: int = 0
    embedded: int = 0
    removed: int = 0
    obstacle: Obstacle | None = None
    more: bool = False


class Obstructed(Exception):
    """The slice cannot go on; the tenant is to be left alone for `pause_s` seconds."""

    def __init__(self, obstacle: Obstacle, *, pause_s: float) -> None:
        super().__init__(obstacle)
        self.obstacle: Obstacle = obstacle
        self.pause_s = pause_s


def packed(items: Sequence[T], size: Callable[[T], int], *, most: int, count: int) -> Iterator[list[T]]:
    """Groups of consecutive items, each of at most `count` items and `most` in size; a larger item is one by itself."""
    group: list[T] = []
    total = 0
    for item in items:
        if group and (len(group) >= count or total + size(item) > most):
            yield group
            group, total = [], 0
        group.append(item)
        total += size(item)
    if group:
        yield group


def smaller(size: int, items: Sequence[Tried]) -> int:
    """Size of groups in which to try items again: halved for each try in vain, so that what spoils a group is found."""
    return max(1, size >> max((item.attempts for item in items), default=0))
