"""How candidates become a ranking. Pure: the clock and the weights are arguments.

The score is DESIGN section 6's: a weighted mean of *match* (likeness to the query, relative to the pool), *recency*,
*importance* and *priority*. *Relevance* is another number, absolute: the best of nonsense stays low.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Final, Literal
from uuid import UUID

import msgspec
import numpy as np
import numpy.typing as npt

from memplane_core.domain.embedding import ModelProfile
from memplane_core.domain.lexical import Floats, likeness
from memplane_core.domain.periods import period_of
from memplane_core.domain.text import mostly_cjk

Weight = Annotated[float, msgspec.Meta(ge=0, le=1000)]
Origin = Literal["index", "words", "fresh", "scan"]
Preset = Literal["dbgpt"]

DECAY_RATE: Final = 0.01
"""Part of its recency that a memory loses in an hour."""

# The weights of the signals in a match were chosen on public sets, in English and in Chinese, with the figures of all
# conversations in sight: none of those sets is held out from them. docs/evaluation.md says what each is worth.

LEXICAL: Final = 0.35
DENSE: Final = 0.65
"""Words and meaning, each measured against the pool's best."""

BEFORE: Final = 0.5
AFTER: Final = 0.2
"""What part of its neighbours' lexical score a memory is given: answers do not repeat questions. Neighbours are those
next to it among its session's memories in the pool. To look up the ones next to it in the whole session costs two
look-ups a memory and ranks no better: what is no candidate itself has no words to lend."""

ACTOR: Final = 0.2
"""For a memory of the one actor that the query names."""

DATED: Final = 0.3
DATED_DAYS: Final = 14
"""For a memory of the time that the query names; it falls to nothing this many days from it, for people tell late."""

SESSION: Final = 1.0
SESSION_BEST: Final = 3
"""A session speaks for its memories by the mean of its best three; one that has fewer in the pool has less to say."""

LENGTH: Final = 0.1
LENGTH_ENOUGH: Final = 20
LENGTH_BEYOND: Final = 0.5
"""For the logarithm of a text's terms over `LENGTH_ENOUGH`: exclamations answer nothing. What is longer gains half of
it only, or long texts would win over fitting ones."""

TELLS_WHEN: Final = 0.1
"""For a text that says when: it tells of something that happened."""

QUESTION: Final = 0.1
"""Taken off what ends in a question mark: it asks, and hardly ever answers."""

SPREAD: Final = 7
SPREAD_LEAST: Final = 0.25
SPREAD_POOL: Final = 10
"""The dense match is 0 this many standard deviations of the pool's cosines below the best, at most the model's span and
at least a quarter of it: the same model spreads cosines less in one language or on one topic than on another. The
spread of fewer than `SPREAD_POOL` memories says nothing."""

_HOUR_S: Final = 3600.0
_OCCURRENCES: Final = 16
"""How often a name is looked for in a query that is full of it."""


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


class Candidate(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A memory that may answer the query, as Postgres has it now.

    Attributes:
        version: Of the memory, as it was read.
        cosine: Of the query and the memory's best chunk, -1..1; None where one of the two has no vector.
        terms: Packed, of its head and text (`domain.text.terms`).
        session: The same number for memories of one user, agent and session; None for one of no session.
        actor: Who said or did it.
        occurred_at: When it happened.
        question: Its text ends in a question mark.
    """

    memory_id: UUID
    version: int
    cosine: float | None
    terms: bytes
    session: int | None
    actor: str | None
    occurred_at: datetime
    question: bool
    importance: float
    priority: int
    last_accessed_at: datetime


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked.

    Attributes:
        text: As it was given.
        terms: Packed words of the text (`domain.lexical.query_words`); empty where words do not count.
        model: Whose cosines the candidates have: they are read by its span and its anchors.
    """

    text: str
    terms: bytes
    model: ModelProfile


class Ranked(msgspec.Struct, frozen=True, gc=False):
    """A candidate's place, and the parts of its score before their weights."""

    candidate: Candidate
    score: float
    relevance: float
    dense: float
    lexical: float
    actor: float
    dated: float
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
    columns = (
        score,
        parts.relevance,
        parts.dense,
        parts.lexical,
        parts.actor,
        parts.dated,
        parts.session,
        parts.informativeness,
        parts.match,
        recency,
        priority,
    )
    rows = zip(pool, *(column.tolist() for column in columns), strict=True)
    return sorted((Ranked(*row) for row in rows), key=_order, reverse=True)


def _order(place: Ranked) -> tuple[float, float, UUID]:
    return place.score, place.relevance, place.candidate.memory_id


class _Parts:
    """The signals of likeness of each candidate, as arrays in the pool's order."""

    def __init__(self, pool: Sequence[Candidate], question: Question) -> None:
        model = question.model
        words = likeness(question.terms, [c.terms for c in pool])
        cosines = np.array([np.nan if c.cosine is None else c.cosine for c in pool], dtype=np.float64)
        known = ~np.isnan(cosines)
        self.similarity: Floats = np.where(known, cosines, 0.0)
        # What waits for its vector must not stand behind what is merely the nearest of all that have one.
        self.dense: Floats = np.where(known, _dense(cosines, known, span=model.span), words.scores * known.any())
        sessions = _sessions(pool)
        self.lexical: Floats = words.scores + _lent(sessions, words.scores)
        self.actor: Floats = _actors(pool, question.text)
        self.dated: Floats = _dated(pool, question.text)
        base = LEXICAL * self.lexical + DENSE * self.dense + ACTOR * self.actor + DATED * self.dated
        self.session: Floats = _spoken_for(sessions, base)
        length = np.log(np.maximum(words.lengths, 1.0) / LENGTH_ENOUGH)
        self.informativeness: Floats = (
            LENGTH * np.where(length > 0, LENGTH_BEYOND * length, length)
            + TELLS_WHEN * words.tells_when
            - QUESTION * np.array([c.question for c in pool], dtype=np.float64)
        )
        raw = base + SESSION * self.session + self.informativeness
        peak = raw.max()
        self.match: Floats = np.clip(raw / peak, 0.0, 1.0) if peak > 0 else np.zeros(len(pool))
        # Two proofs of their own: a text that shares the words of a question says something of it whatever its vector.
        self.relevance: Floats = np.minimum(1.0, _anchored(self.similarity, question) * known + words.share)


def _anchored(cosines: Floats, question: Question) -> Floats:
    """Cosines between the model's anchors for the question's script: 0 for an unrelated pair, 1 for a sure match."""
    model = question.model
    shift = model.anchor_cjk if mostly_cjk(question.text) else 0.0
    return np.clip((cosines - shift - model.anchor_low) / (model.anchor_high - model.anchor_low), 0.0, 1.0)


def _dense(cosines: Floats, known: npt.NDArray[np.bool_], *, span: float) -> Floats:
    """1 for the best of the known cosines, falling to 0 at the span below it; only the known places have a meaning."""
    values = cosines[known]
    if values.size == 0:
        return np.zeros(cosines.size)
    if values.size >= SPREAD_POOL:
        span = min(span, max(SPREAD_LEAST * span, SPREAD * float(values.std())))
    return np.clip(1.0 - (values.max() - np.where(known, cosines, -1.0)) / span, 0.0, 1.0)


def _actors(pool: Sequence[Candidate], query: str) -> Floats:
    folded = query.casefold()
    named = {actor for actor in {c.actor.casefold() for c in pool if c.actor} if _names(folded, actor)}
    if len(named) != 1:
        return np.zeros(len(pool))
    return np.array([c.actor is not None and c.actor.casefold() in named for c in pool], dtype=np.float64)


def _names(query: str, actor: str) -> bool:
    """Whether a folded query has an actor's name, and not merely as a part of a longer word."""
    at = query.find(actor)
    for _ in range(_OCCURRENCES):
        if at < 0:
            return False
        around = query[max(0, at - 1) : at], actor[0], actor[-1], query[at + len(actor) : at + len(actor) + 1]
        if not (_joined(around[0], around[1]) or _joined(around[2], around[3])):
            return True
        at = query.find(actor, at + 1)
    return False


def _joined(left: str, right: str) -> bool:
    """Whether two letters next to each other are of one word; ideograms have no such sign, so they are not."""
    return all(letter.isalnum() and letter < "\u2e80" for letter in (left, right) if letter) and bool(left and right)


def _dated(pool: Sequence[Candidate], query: str) -> Floats:
    period = period_of(query)
    if period is None:
        return np.zeros(len(pool))
    days = np.array([period.days_from(c.occurred_at) for c in pool], dtype=np.float64)
    return np.maximum(0.0, 1.0 - days / DATED_DAYS)


def _sessions(pool: Sequence[Candidate]) -> list[list[int]]:
    """The places in the pool of each session's memories, in the order in which they happened."""
    members: dict[int, list[int]] = {}
    for n, candidate in enumerate(pool):
        if candidate.session is not None:
            members.setdefault(candidate.session, []).append(n)
    for places in members.values():
        places.sort(key=lambda n: (pool[n].occurred_at, pool[n].memory_id.int))
    return list(members.values())


def _lent(sessions: list[list[int]], scores: Floats) -> Floats:
    """What each memory is given of its neighbours' scores."""
    lent = np.zeros(scores.size)
    for places in sessions:
        lent[places[1:]] += BEFORE * scores[places[:-1]]
        lent[places[:-1]] += AFTER * scores[places[1:]]
    return lent


def _spoken_for(sessions: list[list[int]], base: Floats) -> Floats:
    """The mean of the best three of each one's session; a memory of no session speaks for itself."""
    spoken = base.copy()
    for places in sessions:
        spoken[places] = np.sort(base[places])[-SESSION_BEST:].sum() / SESSION_BEST
    return spoken
