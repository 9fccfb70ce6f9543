"""Texts to embed, the windows they are split into, and what a caller must know of a model."""

from typing import Literal

import msgspec

Lane = Literal["query", "write", "bulk"]
InputType = Literal["query", "passage"]


class ModelProfile(msgspec.Struct, frozen=True, kw_only=True):
    """What a caller must know of a model.

    Attributes:
        name: As it is called in requests and in a tenant's generation.
        dim: Length of its vectors, which have unit norm.
        max_tokens: Longest window, special tokens and prefixes included.
        span: Cosine distance below the pool's best at which the dense match is 0 (DESIGN section 6).
        anchor_low: Cosine of an unrelated pair: relevance 0.
        anchor_high: Cosine of a sure match: relevance 1.
        anchor_cjk: What is added to both for a query in Chinese or Japanese: many models hold such texts to be
            more alike.
        multilingual: False for a model that knows English alone.
    """

    name: str
    dim: int
    max_tokens: int
    span: float
    anchor_low: float
    anchor_high: float
    multilingual: bool
    anchor_cjk: float = 0.0


class ModelProfiles(msgspec.Struct, frozen=True, kw_only=True):
    """All models served, and the one used when a request names none."""

    default: str
    models: list[ModelProfile]


class EmbedItem(msgspec.Struct, frozen=True, array_like=True):
    """A text to embed. `head` goes before every window of `text`, so that each knows its date and actor."""

    text: str
    head: str = ""


class Window(msgspec.Struct, frozen=True, array_like=True):
    """A token window of a text, as code-point offsets: `text[start:end]`."""

    start: int
    end: int
