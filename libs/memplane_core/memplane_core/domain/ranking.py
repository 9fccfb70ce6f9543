"""How candidates become a ranking. Pure: the clock and the weights are arguments.

The score is DESIGN section 6's: a weighted mean of *match* (likeness to the query, relative to the pool), *recency*,
*importance* and *priority*. *Relevance* is another number, absolute: the best of nonsense stays low.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Final, Literal
from uuid import UUID

import msgspec
import numpy as np
import numpy.typing as npt

from memplane_core.domain.embedding import ModelProfile
from memplane_core.domain.text import TERM_BYTES

Weight = Annotated[float, msgspec.Meta(ge=0, le=1000)]
Origin = Literal["index", "words", "fresh", "scan"]
Preset = Literal["dbgpt"]

Floats = npt.NDArray[np.float64]

DECAY_RATE: Final = 0.01
"""Part of its recency that a memory loses in an hour."""

K1: Final = 0.9
B: Final = 0.4
"""BM25's saturation and length normalisation."""

BEFORE: Final = 0.5
AFTER: Final = 0.2
"""What part of its neighbours' lexical score in the session a memory is given."""

LEXICAL: Final = 0.35
DENSE: Final = 0.65
ACTOR: Final = 0.2
SESSION: Final = 1.2
SESSION_BEST: Final = 3
LENGTH: Final = 0.15
QUESTION: Final = 0.1

_HOUR_S: Final = 3600.0


class Weights(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much each part counts in a score; they are divided by their sum."""

    match: Weight = 0.75
    recency: Weight = 0.10
    importance: Weight = 0.10
    priority: Weight = 0.05

    @property
    def total(self) -> float:
        """Their sum."""
        return self.match + self.recency + self.importance + self.priority


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A memory that may answer the query, as Postgres has it now.

    Attributes:
        cosine: Of the query and the memory's best chunk, -1..1; None where one of the two has no vector.
        terms: Packed, of its head and text (`domain.text.terms`).
        before: Those of the memory before it in its session; None where there is none.
        after: Those of the memory after it.
        session: The same number for memories of one user, agent and session; None for one of no session.
        actor: Who said or did it.
        question: Its text ends in a question mark.
        origin: Where it was found.
    """

    memory_id: UUID
    cosine: float | None
    terms: bytes
    before: bytes | None
    after: bytes | None
    session: int | None
    actor: str | None
    question: bool
    importance: float
    priority: int
    last_accessed_at: datetime
    origin: Origin


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked.

    Attributes:
        text: As it was given.
        terms: Packed, of the text; empty where words do not count.
        model: Whose cosines the candidates have: they are read by its span and its anchors.
    """

    text: str
    terms: bytes
    model: ModelProfile


class Ranked(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate's place, and the parts of its score before their weights."""

    candidate: Candidate
    score: float
    relevance: float
    dense: float
    lexical: float
    actor: float
    session: float
    informativeness: float
    match: float
    recency: float
    priority: float


def rank(
    pool: Sequence[Candidate],
    *,
    question: Question,
    now: datetime,
    weights: Weights,
    decay_rate: float = DECAY_RATE,
    preset: Preset | None = None,
) -> list[Ranked]:
    """The pool, best first; equal scores by relevance, then the newer memory.

    Args:
        pool: Distinct memories.
        question: What they are ranked for.
        now: The clock that recency is measured by.
        weights: At least one above 0; not used with a preset.
        decay_rate: Part of its recency that a memory loses in an hour, 0..1.
        preset: Another formula by its name.
    """
    if not pool:
        return []
    parts = _Parts(pool, question)
    hours = np.array([max(0.0, (now - c.last_accessed_at).total_seconds() / _HOUR_S) for c in pool])
    recency = (1.0 - decay_rate) ** hours
    importance = np.array([c.importance for c in pool])
    priority = (np.array([c.priority for c in pool]) - 1) / 4
    if preset == "dbgpt":
        score = parts.similarity + recency + 0.15 * importance
    else:
        score = (
            weights.match * parts.match
            + weights.recency * recency
            + weights.importance * importance
            + weights.priority * priority
        ) / weights.total
    ranked = [
        Ranked(
            candidate=candidate,
            score=float(score[n]),
            relevance=float(parts.relevance[n]),
            dense=float(parts.dense[n]),
            lexical=float(parts.lexical[n]),
            actor=float(parts.actor[n]),
            session=float(parts.session[n]),
            informativeness=float(parts.informativeness[n]),
            match=float(parts.match[n]),
            recency=float(recency[n]),
            priority=float(priority[n]),
        )
        for n, candidate in enumerate(pool)
    ]
    ranked.sort(key=lambda r: (r.score, r.relevance, r.candidate.memory_id), reverse=True)
    return ranked


class _Parts:
    """The signals of likeness of each candidate, as arrays in the pool's order."""

    def __init__(self, pool: Sequence[Candidate], question: Question) -> None:
        model = question.model
        cosines = np.array([np.nan if c.cosine is None else c.cosine for c in pool])
        known = ~np.isnan(cosines)
        best = cosines[known].max() if known.any() else 0.0
        self.similarity: Floats = np.where(known, cosines, 0.0)
        self.dense: Floats = np.where(known, np.clip(1.0 - (best - self.similarity) / model.span, 0.0, 1.0), 0.0)
        words = np.unique(_unpacked(question.terms))
        own, before, after, share, lengths = _bm25(pool, words)
        top = own.max()
        scale = top if top > 0 else 1.0
        self.lexical: Floats = (own + BEFORE * before + AFTER * after) / scale
        if known.any():
            # What waits for its vector must not stand behind what is merely the nearest of all that have one.
            self.dense = np.where(known, self.dense, np.minimum(1.0, own / scale))
        self.actor: Floats = _actors(pool, question.text)
        base = LEXICAL * self.lexical + DENSE * self.dense + ACTOR * self.actor
        self.session: Floats = _sessions(pool, base)
        self.informativeness: Floats = LENGTH * np.log(np.maximum(lengths, 1)) - QUESTION * np.array(
            [c.question for c in pool], float
        )
        raw = base + SESSION * self.session + self.informativeness
        peak = raw.max()
        self.match: Floats = np.clip(raw / peak, 0.0, 1.0) if peak > 0 else np.zeros(len(pool))
        anchored = (
            np.clip((self.similarity - model.anchor_low) / (model.anchor_high - model.anchor_low), 0.0, 1.0) * known
        )
        self.relevance: Floats = np.maximum(anchored, share)


def _unpacked(packed: bytes) -> npt.NDArray[np.uint32]:
    return np.frombuffer(packed, dtype="<u4")


def _bm25(pool: Sequence[Candidate], words: npt.NDArray[np.uint32]) -> tuple[Any, Any, Any, Any, Any]:
    """BM25 of each candidate and its neighbours, the share of the query's possible score, and lengths in terms.

    Document frequencies and the mean length are the pool's own.
    """
    count = len(pool)
    texts = [c.terms for c in pool] + [c.before or b"" for c in pool] + [c.after or b"" for c in pool]
    lengths = np.array([len(text) // TERM_BYTES for text in texts], dtype=np.float64)
    mean = max(1.0, float(lengths[:count].mean()))
    if words.size == 0:
        none = np.zeros(count)
        return none, none, none, none, lengths[:count]
    everything = _unpacked(b"".join(texts))
    owner = np.repeat(np.arange(len(texts)), lengths.astype(np.int64))
    place = np.searchsorted(words, everything)
    place[place == words.size] = 0
    hit = words[place] == everything
    counts = np.zeros((len(texts), words.size))
    np.add.at(counts, (owner[hit], place[hit]), 1.0)
    frequency = (counts[:count] > 0).sum(axis=0)
    idf = np.log1p((count - frequency + 0.5) / (frequency + 0.5))
    norm = K1 * (1 - B + B * lengths / mean)
    scores = ((counts * (K1 + 1)) / (counts + norm[:, None])) @ idf
    share = np.minimum(1.0, ((counts[:count] > 0) @ idf) / max(float(idf.sum()), 1e-9))
    return scores[:count], scores[count : 2 * count], scores[2 * count :], share, lengths[:count]


def _actors(pool: Sequence[Candidate], query: str) -> Floats:
    folded = query.casefold()
    named = {actor for actor in {c.actor.casefold() for c in pool if c.actor} if actor in folded}
    return np.array([len(named) == 1 and c.actor is not None and c.actor.casefold() in named for c in pool], float)


def _sessions(pool: Sequence[Candidate], base: Floats) -> Floats:
    members: dict[int, list[int]] = {}
    for n, candidate in enumerate(pool):
        if candidate.session is not None:
            members.setdefault(candidate.session, []).append(n)
    session = np.zeros(len(pool))
    for places in members.values():
        session[places] = np.sort(base[places])[-SESSION_BEST:].sum() / SESSION_BEST
    return session
