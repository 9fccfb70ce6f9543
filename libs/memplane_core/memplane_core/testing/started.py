"""What runs inside a `with`."""

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Started(ABC):
    """Something that is started when a `with` begins, and gone when it ends or when the start fails."""

    @abstractmethod
    def start(self) -> None:
        """Start it, and wait until it can be used."""

    @abstractmethod
    def dispose(self) -> None:
        """End it, whatever state it is in, and remove what it left behind."""

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.dispose()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.dispose()
