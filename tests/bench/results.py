"""What a run found."""

import msgspec


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """Where and when it was measured; `load_before` and `load_after` are the load averages of one minute."""

    at: str
    commit: str
    cpu: str
    cores: int
    memory_gb: float
    python: str
    versions: dict[str, str]
    load_before: float
    load_after: float


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for."""

    stores: list[str]
    memories: int
    model: str
    rounds: int
    pairs: int
    batch_rounds: int
    fresh: int


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One subject of an interleaved measurement.

    Attributes:
        scenario: What all subjects did.
        subject: Who did it.
        more_ms: Its p50 less that of the peer, which has none.
        times: Its p50 in parts of the peer's.
    """

    scenario: str
    subject: str
    n: int
    p50_ms: float
    p95_ms: float
    more_ms: float | None
    times: float | None


class BatchRound(msgspec.Struct, frozen=True, kw_only=True):
    """One batch until it was indexed, and the embedder alone on the same texts: both in texts a second."""

    first: str
    texts: int
    batch: float
    embedder: float

    @property
    def share(self) -> float:
        """The batch's speed in parts of the embedder's."""
        return self.batch / self.embedder


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """Median milliseconds of one stage, by column; None where a column has no such stage."""

    name: str
    ms: dict[str, float | None]


class Calls(msgspec.Struct, frozen=True, kw_only=True):
    """What one operation really sent: how often what, and how many operations of `n` sent just that."""

    operation: str
    service: str
    sent: dict[str, int]
    usual: int
    n: int


class Cpu(msgspec.Struct, frozen=True, kw_only=True):
    """Processor milliseconds that one operation cost each part, over `n` of them; background work is in it."""

    operation: str
    n: int
    ms: dict[str, float]


class StoreResult(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about one store."""

    store: str
    load_s: float
    rows: list[Row]
    batches: list[BatchRound]
    search_stages: list[Stage]
    write_stages: list[Stage]
    calls: list[Calls]
    cpu: list[Cpu]
    pairs: int
    missed: int


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """A whole run."""

    machine: Machine
    options: Options
    stores: list[StoreResult]
