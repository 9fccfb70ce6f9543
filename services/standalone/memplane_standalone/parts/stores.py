"""The embedded stores: Postgres, Valkey and Milvus Lite."""

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from memplane_core.embedded.processes import Launch
from memplane_standalone.home import Home
from memplane_standalone.leftovers import MARK
from memplane_standalone.parts.part import Part


class EmbeddedServer(Protocol):
    """What `memplane_core.embedded` offers of each server."""

    def prepare(self) -> None:
        """Called before each start."""
        ...

    def launch(self) -> Launch:
        """How to run it."""
        ...

    def is_ready(self) -> bool:
        """Whether it answers."""
        ...


def store_part(home: Home, name: str, server: EmbeddedServer) -> Part:
    """Keeps an embedded server running; the first to start and the last to stop."""
    return Part(
        name=name,
        prepare=server.prepare,
        launch=marked(home, server.launch),
        is_ready=server.is_ready,
        stage=0,
    )


def marked(home: Home, launch: Callable[[], Launch]) -> Callable[[], Launch]:
    """The same, with the mark by which a later start finds what was left running."""

    def with_mark() -> Launch:
        made = launch()
        return replace(made, env={**made.env, MARK: str(home.path)})

    return with_mark
