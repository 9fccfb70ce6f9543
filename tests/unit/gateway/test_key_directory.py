"""What the gateway remembers of keys, and for how long."""

import asyncio
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import msgspec
import pytest
from litestar.datastructures import Headers

from memplane_core.domain.errors import Unauthorized, Unavailable
from memplane_core.domain.tenancy import TenantId
from memplane_core.security.keys import IssuedKey, Keyring
from memplane_core.storage.api_keys import StoredKey
from memplane_gateway.auth import KeyDirectory, presented_secret

pytestmark = pytest.mark.anyio

NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Shelf:
    """Keys by id, a clock, and how often somebody looked."""

    def __init__(self) -> None:
        self.ring = Keyring(["pepper of the tests, which is long enough"])
        self.keys: dict[str, StoredKey] = {}
        self.looked: list[str] = []
        self.now = 0.0
        self.away = False
        self.directory = KeyDirectory(self.ring, self.find, trust_s=10, clock=lambda: self.now)

    async def find(self, key_id: str) -> StoredKey | None:
        self.looked.append(key_id)
        await asyncio.sleep(0)
        if self.away:
            raise Unavailable("away")
        return self.keys.get(key_id)

    def add(self, *, expires_at: datetime | None = None, revoked_at: datetime | None = None) -> IssuedKey:
        issued = self.ring.issue()
        self.keys[issued.id] = StoredKey(
            tenant=TenantId(uuid4()),
            id=issued.id,
            name="k",
            digest=issued.digest,
            scopes=frozenset(("memories:read",)),
            created_at=NOW,
            expires_at=expires_at,
            revoked_at=revoked_at,
        )
        return issued


async def refused(shelf: Shelf, text: str) -> str:
    with pytest.raises(Unauthorized) as caught:
        await shelf.directory.identify(text)
    return caught.value.detail


class TestIdentifying:
    async def test_a_known_key_is_looked_up_once_and_then_trusted_for_a_while(self) -> None:
        shelf = Shelf()
        issued = shelf.add()
        for _ in range(3):
            assert (await shelf.directory.identify(issued.text)).id == issued.id
        assert shelf.looked == [issued.id]
        shelf.now = 11
        assert (await shelf.directory.identify(issued.text)).tenant == shelf.keys[issued.id].tenant
        assert shelf.looked == [issued.id, issued.id]

    async def test_a_slow_answer_is_trusted_from_when_it_was_asked_for(self) -> None:
        """What it says was read then, and may have been revoked a moment later."""
        shelf = Shelf()
        issued = shelf.add()
        looking = asyncio.create_task(shelf.directory.identify(issued.text))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert shelf.looked == [issued.id]
        shelf.now = 4
        await looking
        shelf.keys[issued.id] = msgspec.structs.replace(shelf.keys[issued.id], revoked_at=NOW)
        shelf.now = 9.9
        await shelf.directory.identify(issued.text)
        shelf.now = 10
        await refused(shelf, issued.text)

    async def test_many_at_once_with_one_key_share_one_look_up(self) -> None:
        shelf = Shelf()
        issued = shelf.add()
        found = await asyncio.gather(*(shelf.directory.identify(issued.text) for _ in range(50)))
        assert {key.id for key in found} == {issued.id}
        assert shelf.looked == [issued.id]

    async def test_a_mistyped_key_costs_no_look_up(self) -> None:
        shelf = Shelf()
        text = shelf.add().text
        await refused(shelf, text[:-1] + ("0" if text[-1] != "0" else "1"))
        assert shelf.looked == []

    async def test_an_unknown_key_is_looked_up_once_in_two_seconds(self) -> None:
        shelf = Shelf()
        issued = shelf.ring.issue()
        await refused(shelf, issued.text)
        await refused(shelf, issued.text)
        assert len(shelf.looked) == 1
        shelf.now = 2.5
        await refused(shelf, issued.text)
        assert len(shelf.looked) == 2

    async def test_a_wrong_secret_does_not_spoil_the_right_one(self) -> None:
        shelf = Shelf()
        issued = shelf.add()
        forged = shelf.ring.issue()
        shelf.keys[forged.id] = shelf.keys[issued.id]
        await refused(shelf, forged.text)
        assert (await shelf.directory.identify(issued.text)).id == issued.id

    async def test_every_refusal_says_the_same(self) -> None:
        shelf = Shelf()
        past = datetime.now(UTC) - timedelta(seconds=1)
        texts = [
            "",
            "nonsense",
            shelf.ring.issue().text,
            shelf.add(revoked_at=NOW).text,
            shelf.add(expires_at=past).text,
        ]
        assert len({await refused(shelf, text) for text in texts}) == 1

    async def test_every_refused_key_costs_the_same_look_ups(self) -> None:
        shelf = Shelf()
        past = datetime.now(UTC) - timedelta(seconds=1)
        forged = shelf.ring.issue()
        shelf.keys[forged.id] = shelf.keys[shelf.add().id]
        texts = [shelf.ring.issue().text, forged.text, shelf.add(revoked_at=NOW).text, shelf.add(expires_at=past).text]
        for text in texts:
            for now in (0.0, 1.9, 2.1):  # two seconds is how long a refusal is remembered
                shelf.now = now
                await refused(shelf, text)
            assert len(shelf.looked) == 2, text
            shelf.looked.clear()


class TestForgetting:
    async def test_a_revocation_is_felt_when_the_trust_ends(self) -> None:
        shelf = Shelf()
        issued = shelf.add()
        await shelf.directory.identify(issued.text)
        shelf.keys[issued.id] = msgspec.structs.replace(shelf.keys[issued.id], revoked_at=NOW)
        shelf.now = 9
        await shelf.directory.identify(issued.text)
        shelf.now = 11
        await refused(shelf, issued.text)

    async def test_a_forgotten_key_is_looked_up_again_at_once(self) -> None:
        shelf = Shelf()
        issued = shelf.add()
        await shelf.directory.identify(issued.text)
        del shelf.keys[issued.id]
        shelf.directory.forget(issued.id)
        await refused(shelf, issued.text)

    async def test_a_trusted_key_that_expires_is_refused_before_the_trust_ends(self) -> None:
        shelf = Shelf()
        soon = datetime.now(UTC) + timedelta(seconds=1)
        issued = shelf.add(expires_at=soon)
        await shelf.directory.identify(issued.text)
        await asyncio.sleep((soon - datetime.now(UTC)).total_seconds() + 0.001)
        await refused(shelf, issued.text)
        assert len(shelf.looked) == 1

    async def test_an_outage_is_not_remembered_as_a_refusal(self) -> None:
        shelf = Shelf()
        issued = shelf.add()
        shelf.away = True
        with pytest.raises(Unavailable):
            await shelf.directory.identify(issued.text)
        shelf.away = False
        assert (await shelf.directory.identify(issued.text)).id == issued.id


class TestHeaders:
    @pytest.mark.parametrize(
        ("headers", "secret"),
        [
            ({"Authorization": "Bearer abc"}, "abc"),
            ({"Authorization": "bearer  abc "}, "abc"),
            ({"Authorization": "Token abc"}, "abc"),
            ({"X-API-Key": "abc"}, "abc"),
            ({"Authorization": "Bearer abc", "X-API-Key": "abc"}, "abc"),
            ({"Authorization": "Bearer abc", "X-API-Key": "other"}, ""),
            ({"Authorization": "Basic abc", "X-API-Key": "other"}, ""),
            ({"Authorization": "abc"}, ""),
            ({"Authorization": ""}, ""),
            ({}, ""),
        ],
    )
    async def test_the_secret_is_found_where_it_is_documented(self, headers: dict[str, str], secret: str) -> None:
        assert presented_secret(Headers(headers)) == secret
