"""Embeds texts of a tenant by a model's name, from the caches where it can."""

import asyncio
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from memplane_core.domain.embedding import EmbedItem, InputType, Lane, ModelProfiles, Window
from memplane_core.domain.errors import EmbeddingUnavailable, Fault, NotFound, QuotaExceeded
from memplane_core.domain.index import FloatArray
from memplane_core.domain.tenancy import TenantId
from memplane_core.observability.tracing import span
from memplane_embedding.cache import CacheKeys, VectorCache
from memplane_embedding.metrics import COMPUTE_SECONDS, REQUEST_TEXTS, TEXTS
from memplane_embedding.provider import Embedded, Provider, failed

_MOST_LEAD_TOKENS: Final = 64
"""More than a model puts before and after a text; of the text itself no token is shorter than a byte."""


class Metered(msgspec.Struct, frozen=True):
    """An answer and what it costs: the tokens of the texts that had to be computed."""

    embedded: list[Embedded]
    tokens: int


class EmbeddingService:
    """The models of an installation.

    Args:
        providers: By the name that requests use.
        default: One of them.
        cache: Vectors already computed.
        keys: Names cache entries.
        max_text_bytes: Longest text, head included, in UTF-8.
        rerankers: Names of models that have no vectors, for requests that take one for an embedding model.
    """

    def __init__(
        self,
        providers: Mapping[str, Provider],
        *,
        default: str,
        cache: VectorCache,
        keys: CacheKeys,
        max_text_bytes: int,
        rerankers: Collection[str] = (),
    ) -> None:
        self._providers = dict(providers)
        self._default = default
        self._cache = cache
        self._keys = keys
        self._max_text_bytes = max_text_bytes
        self._rerankers = frozenset(rerankers)
        self._loaded = False

    def profiles(self) -> ModelProfiles:
        """All models served."""
        return ModelProfiles(default=self._default, models=[provider.profile for provider in self._providers.values()])

    def provider(self, model: str) -> Provider:
        """A model by name; "" is the default one. Raises NotFound."""
        found = self._providers.get(model or self._default)
        if found is None:
            fault = f"{model!r} is a reranker" if model in self._rerankers else f"no model is called {model!r}"
            detail = f"{fault}; there are {', '.join(sorted(self._providers))}"
            raise NotFound(detail, faults=[Fault("/model", detail)])
        return found

    async def start(self) -> None:
        """Load the default model. Raises EmbeddingUnavailable."""
        self._cache.start()
        await self.provider(self._default).load()
        self._loaded = True

    async def check(self) -> None:
        """Return once the default model is loaded. Raises EmbeddingUnavailable."""
        if not self._loaded:
            raise EmbeddingUnavailable("the default model is not loaded yet", retry_after=1)

    async def close(self) -> None:
        """Give back everything."""
        await asyncio.gather(*(provider.close() for provider in self._providers.values()))
        await self._cache.close()

    async def embed(
        self, tenant: TenantId, items: Sequence[EmbedItem], *, model: str, input_type: InputType, lane: Lane
    ) -> list[Embedded]:
        """Windows and vectors of each text, in order; a query has one window whatever its length.

        Raises:
            NotFound: No model is called that.
            EmbeddingUnavailable: The model is away, or too much is waiting.
        """
        return (await self.embed_metered(tenant, items, model=model, input_type=input_type, lane=lane)).embedded

    async def embed_metered(
        self,
        tenant: TenantId,
        items: Sequence[EmbedItem],
        *,
        model: str,
        input_type: InputType,
        lane: Lane,
        most_tokens: int | None = None,
    ) -> Metered:
        """The same with its cost.

        Raises:
            QuotaExceeded: It would cost more than `most_tokens`. Nothing was computed.
            NotFound, EmbeddingUnavailable: See `embed`.
        """
        provider = self.provider(model)
        dim = provider.profile.dim
        answers: list[Embedded | None] = [self._fault(item, dim=dim) for item in items]
        keyed = {
            n: self._keys.name(tenant, provider, item=item, input_type=input_type)
            for n, item in enumerate(items)
            if answers[n] is None
        }
        known = await self._cache.get(list(dict.fromkeys(keyed.values())), dim=dim)
        wanted = {key: items[n] for n, key in keyed.items() if key not in known}
        if most_tokens is not None:
            await _check_cost(provider, list(wanted.values()), input_type=input_type, most_tokens=most_tokens)
        REQUEST_TEXTS.labels(lane).observe(len(items))
        TEXTS.labels(provider.profile.name, lane, "cached").inc(len(known))
        TEXTS.labels(provider.profile.name, lane, "computed").inc(len(wanted))
        fresh = await self._compute(tenant, provider, wanted, input_type=input_type, lane=lane)
        found = known | fresh
        return Metered(
            [found[keyed[n]] if answer is None else answer for n, answer in enumerate(answers)],
            sum(embedded.tokens for embedded in fresh.values()),
        )

    async def _compute(
        self,
        tenant: TenantId,
        provider: Provider,
        wanted: Mapping[bytes, EmbedItem],
        *,
        input_type: InputType,
        lane: Lane,
    ) -> dict[bytes, Embedded]:
        if not wanted:
            return {}
        began = time.perf_counter()
        with span("embed", texts=len(wanted)):
            answers = await provider.embed(tenant, list(wanted.values()), input_type=input_type, lane=lane)
        COMPUTE_SECONDS.labels(provider.profile.name, lane).observe(time.perf_counter() - began)
        if input_type == "query":
            answers = [
                answer if answer.error else whole(answer, length=len(item.text))
                for answer, item in zip(answers, wanted.values(), strict=True)
            ]
        fresh = dict(zip(wanted, answers, strict=True))
        if lane != "bulk":  # a re-embedding of everything would push out what is used
            self._cache.put({key: answer for key, answer in fresh.items() if answer.error is None})
        return fresh

    def _fault(self, item: EmbedItem, *, dim: int) -> Embedded | None:
        """What is wrong with a text, if anything."""
        if not item.text:
            return failed("is empty; there is nothing to embed", dim=dim)
        try:
            size = len(item.text.encode()) + len(item.head.encode())
        except UnicodeEncodeError:
            return failed("holds half of a surrogate pair, which is no text", dim=dim)
        if size > self._max_text_bytes:
            return failed(f"has {size} bytes; at most {self._max_text_bytes} are taken", dim=dim)
        return None


async def _check_cost(
    provider: Provider, items: Sequence[EmbedItem], *, input_type: InputType, most_tokens: int
) -> None:
    """Raise QuotaExceeded where the texts have too many tokens, which are counted only where they could be too many."""
    size = sum(len(item.text.encode()) + len(item.head.encode()) + _MOST_LEAD_TOKENS for item in items)
    if size > most_tokens:
        needed = await provider.count_tokens(items, input_type=input_type)
        if needed > most_tokens:
            raise QuotaExceeded(f"this takes {needed:,} tokens, and {most_tokens:,} are left for today")


def whole(embedded: Embedded, *, length: int) -> Embedded:
    """One window for all of a text: the mean of its windows' vectors, brought back to unit length."""
    if len(embedded.windows) == 1:
        return embedded
    vector = mean_direction(embedded.vectors)
    return msgspec.structs.replace(embedded, windows=[Window(0, length)], vectors=vector[None, :])


def mean_direction(vectors: FloatArray) -> FloatArray:
    """The unit vector of the mean of unit vectors of shape (n, dim); the first where they cancel out."""
    mean = vectors.mean(axis=0)
    norm = float(np.linalg.norm(mean))
    return mean / np.float32(norm) if norm > 1e-6 else vectors[0]
