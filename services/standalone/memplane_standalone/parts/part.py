"""What the supervisor has to know of a part."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from memplane_core.embedded.processes import Launch


@dataclass(frozen=True, kw_only=True)
class Part:
    """A program that is kept running.

    Attributes:
        name: In messages, and of its log.
        launch: Called before each start; may not block.
        is_ready: Whether it can do its work. Called in a thread; may block for seconds, never raises.
        prepare: Called in a thread before each start.
        needs: Names of parts and steps to wait for, at the first start only.
        asked_after: Names of parts that have to be ready before this one is asked whether it is: its answer depends on
            them, and it is not to find them missing.
        stage: Higher ones are stopped first.
        ready_s: How long it may take to get ready before it is started afresh.
    """

    name: str
    launch: Callable[[], Launch]
    is_ready: Callable[[], bool]
    prepare: Callable[[], None] | None = None
    needs: tuple[str, ...] = ()
    asked_after: tuple[str, ...] = ()
    stage: int = 0
    ready_s: float = 60.0


@dataclass(frozen=True, kw_only=True)
class Step:
    """Something that is done once at the start.

    Attributes:
        name: In messages.
        run: Does it; raises what the start shall fail with.
        needs: Names of parts and steps to wait for.
    """

    name: str
    run: Callable[[], Awaitable[None]]
    needs: tuple[str, ...] = ()
