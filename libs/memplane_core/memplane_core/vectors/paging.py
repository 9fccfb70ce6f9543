"""All keys of a collection in pages, from servers that give no more than so many rows, and those in no order."""

from collections.abc import Awaitable, Callable

SomeKeys = Callable[[str, str | None, int], Awaitable[list[str]]]
"""Of the keys after the first argument and not after the second, all where there are no more than the third says."""


async def stretch(ask: SomeKeys, after: str, *, limit: int) -> tuple[list[str], str | None]:
    """All keys after `after` and up to some key, at most `limit` of them in order; and that key, None for the end.

    Only an answer with fewer rows than were asked for is known to be whole. Where there are more, the stretch is cut
    at one of them: first as if they had come in order, then ever nearer to `after`.
    """
    until: str | None = None
    place = limit - 1
    while len(found := sorted(set(await ask(after, until, limit + 1)))) > limit:
        until = found[place]
        place //= 2
    return found, until
