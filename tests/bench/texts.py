"""Texts that a model can tell apart, in the length of a chat turn, and questions about them."""

WORDS = (
    *("harbour", "lantern", "maple", "violin", "glacier", "saffron", "orchard", "compass", "meadow", "thunder"),
    *("velvet", "anchor", "copper", "willow", "falcon", "marble", "ginger", "canyon", "ribbon", "cedar"),
)

USERS = 10


def sentence(n: int) -> str:
    """The n-th text; no two are equal."""
    a, b, c = WORDS[n % 20], WORDS[n // 20 % 20], WORDS[n // 400 % 20]
    return f"Note {n}: the {a} next to the {b} belongs to {c} number {n * 7919 % 10_007}."


def question(n: int) -> str:
    """The n-th question."""
    a, b = WORDS[n % 20], WORDS[(n * 7 + n // 20) % 20]
    return f"Who owns the {a} that stands beside the {b}?"


def user(n: int) -> str:
    """Whose the n-th text is: each user has as many."""
    return f"user {n % USERS}"


SCENES = {"one in a hundred": 0.01, "one in ten": 0.1, "nine in ten": 0.9}
"""Scenes, and what part of the texts has them."""


def scenes(n: int) -> list[str]:
    """The scenes of the n-th text."""
    return [
        name
        for name, has in (
            ("one in a hundred", n % 100 == 0),
            ("one in ten", n % 10 == 3),
            ("nine in ten", n % 10 != 7),
        )
        if has
    ]
