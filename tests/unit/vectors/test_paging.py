"""Pages of keys leave none out and give none twice, in whatever order a server gives rows."""

import random
from collections.abc import Callable

import pytest

from memplane_core.vectors.paging import stretch

pytestmark = pytest.mark.anyio

Order = Callable[[list[str]], list[str]]

ORDERS: dict[str, Order] = {
    "in order": sorted,
    "backwards": lambda keys: sorted(keys, reverse=True),
    "at random": lambda keys: random.Random(len(keys)).sample(keys, len(keys)),
    "in two runs": lambda keys: sorted(keys)[1::2] + sorted(keys)[::2],
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("limit", [1, 2, 7, 299, 300, 301, 1_000])
async def test_every_key_is_in_exactly_one_page(order: str, limit: int) -> None:
    keys = [f"{n:04x}_1_0" for n in random.Random(limit).sample(range(65_536), 300)]
    asked = 0

    async def ask(after: str, until: str | None, most: int) -> list[str]:
        nonlocal asked
        asked += 1
        inside = [key for key in keys if key > after and (until is None or key <= until)]
        return ORDERS[order](inside)[:most]

    seen: list[str] = []
    after: str | None = ""
    while after is not None:
        page, after = await stretch(ask, after, limit=limit)
        assert len(page) <= limit
        seen += page
    assert seen == sorted(keys)
    if order == "in order":
        assert asked <= 2 * (300 // limit + 1)
