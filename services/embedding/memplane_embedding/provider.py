"""What stands behind a model's name, and the two kinds that compute in this process or ask another service."""

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

import msgspec
import numpy as np

from memplane_core.background import together
from memplane_core.domain.embedding import EmbedItem, InputType, Lane, ModelProfile, Window
from memplane_core.domain.errors import EmbeddingUnavailable
from memplane_core.domain.index import FloatArray
from memplane_core.domain.tenancy import TenantId
from memplane_embedding.model import OnnxModel, model_build
from memplane_embedding.models.manifest import ModelFolderError, read_manifest
from memplane_embedding.pool import WorkerPool
from memplane_embedding.tokens import TextTokens


class Embedded(msgspec.Struct, frozen=True, array_like=True):
    """A text's windows and their unit vectors, or why it has none.

    Attributes:
        windows: In order; empty with an `error`.
        vectors: Shape (len(windows), dim).
        tokens: Length of the text as the model counts it.
        error: Why the text cannot be embedded, however often it is tried.
    """

    windows: list[Window]
    vectors: FloatArray
    tokens: int
    error: str | None = None


class Provider(Protocol):
    """One model."""

    @property
    def profile(self) -> ModelProfile:
        """What callers need to know of it; there before it is loaded."""
        ...

    @property
    def build(self) -> str:
        """Changes whenever vectors of the same text would."""
        ...

    async def load(self) -> None:
        """Make it ready. Idempotent. Raises EmbeddingUnavailable where it cannot be."""
        ...

    async def embed(
        self, tenant: TenantId, items: Sequence[EmbedItem], *, input_type: InputType, lane: Lane
    ) -> list[Embedded]:
        """Windows and vectors of each text, in order.

        Cancelling it takes back what has not begun. Raises EmbeddingUnavailable where there is no model or no room.
        """
        ...

    async def count_tokens(self, items: Sequence[EmbedItem], *, input_type: InputType) -> int:
        """How many tokens `embed` would count. Raises EmbeddingUnavailable where there is no model."""
        ...

    async def close(self) -> None:
        """Give back what it holds."""
        ...


def failed(reason: str, *, dim: int) -> Embedded:
    """The answer for a text that has no vector."""
    return Embedded([], np.empty((0, dim), np.float32), 0, reason)


class OnnxProvider:
    """A model folder, loaded when first needed, computed by the pool's threads.

    Raises ModelFolderError when made for a folder without a sound manifest.
    """

    def __init__(self, folder: Path, pool: WorkerPool) -> None:
        self._folder = folder
        self._pool = pool
        manifest = read_manifest(folder)
        self._profile = manifest.profile
        self._build = model_build(folder, manifest)
        self._model: OnnxModel | None = None
        self._loading = asyncio.Lock()

    @property
    def profile(self) -> ModelProfile:
        """What callers need to know of it."""
        return self._profile

    @property
    def build(self) -> str:
        """Changes whenever vectors of the same text would."""
        return self._build

    async def load(self) -> None:
        """Read the model into memory, off the event loop."""
        await self._loaded()

    async def embed(
        self, tenant: TenantId, items: Sequence[EmbedItem], *, input_type: InputType, lane: Lane
    ) -> list[Embedded]:
        """Windows and vectors of each text, in order; a window is a job, so that urgent texts wait for no long one."""
        model = await self._loaded()
        begun = self._pool.submit(tenant, lane, [partial(_begin, model, item, input_type) for item in items])
        return await together(self._finish(tenant, lane, model, future) for future in begun)

    async def count_tokens(self, items: Sequence[EmbedItem], *, input_type: InputType) -> int:
        """How many tokens `embed` would count."""
        model = await self._loaded()
        return await asyncio.to_thread(_count, model, items, input_type)

    async def close(self) -> None:
        """Let go of the model."""
        self._model = None

    async def _loaded(self) -> OnnxModel:
        if self._model is None:
            async with self._loading:
                if self._model is None:
                    try:
                        self._model = await asyncio.to_thread(OnnxModel, self._folder)
                    except ModelFolderError as error:
                        raise EmbeddingUnavailable(f"the model cannot be loaded: {error}", retry_after=30) from error
        return self._model

    async def _finish(
        self, tenant: TenantId, lane: Lane, model: OnnxModel, begun: "asyncio.Future[_Begun]"
    ) -> Embedded:
        try:
            first = await begun
            windows = first.split.windows
            rest = self._pool.submit(
                tenant, lane, [partial(model.embed, window.ids) for window in windows[1:]], admitted=True
            )
            vectors = [first.vector, *await asyncio.gather(*rest)]
        except (MemoryError, EmbeddingUnavailable):
            raise
        except Exception as error:  # noqa: BLE001 - a text that the model chokes on must not harm those beside it
            return failed(_reason(error), dim=self._profile.dim)
        return Embedded([window.window for window in windows], np.stack(vectors), first.split.tokens)


class _Begun(msgspec.Struct, frozen=True):
    """A text's windows and the vector of the first."""

    split: TextTokens
    vector: FloatArray


def _begin(model: OnnxModel, item: EmbedItem, input_type: InputType) -> _Begun:
    split = model.split(item.text, head=item.head, input_type=input_type)
    return _Begun(split, model.embed(split.windows[0].ids))


def _count(model: OnnxModel, items: Sequence[EmbedItem], input_type: InputType) -> int:
    return sum(model.split(item.text, head=item.head, input_type=input_type).tokens for item in items)


def _reason(error: Exception) -> str:
    if isinstance(error, UnicodeEncodeError):
        return "holds half of a surrogate pair, which is no text"
    return f"the model cannot embed this text: {error}"[:300]
