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
