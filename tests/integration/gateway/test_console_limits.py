"""A tenant's limits in the console: who sees them, who changes them, and what is told at which field."""

import re

import pytest
from tests.integration.gateway.conftest import ADMIN, ADMIN_KEY, Gateway
from tests.integration.gateway.consoles import browser, limits_of, made

pytestmark = pytest.mark.anyio


async def test_an_operator_changes_limits_and_no_others_than_those(site: Gateway) -> None:
    tenant, _ = await made(site)
    visitor = browser(site)
    await visitor.sign_in(ADMIN_KEY)
    path = f"/console/t/{tenant.id}/limits"
    page = (await visitor.get(path)).text
    assert not re.search(r"<script>|<style|\sstyle=|\son\w+=|https?://", page)
    was = dict.fromkeys(("stored_memories.was", "tokens_a_day.was", "search.was", "write.was"), "default")
    assert {name: value for name, value in re.findall(r'name="(\S+was)" value="(\S+)"', page) if name in was} == was
    # Somebody else sets one of them while the page is open.
    api = f"/admin/v1/tenants/{tenant.id}/limits"
    await site.client.patch(api, json={"tokens_a_day": 5000}, headers=ADMIN)
    quotas = {"stored_memories": "number", "stored_memories.number": "10", "tokens_a_day": "default"}
    answer = await visitor.post(path, group="quotas", **quotas, **was)
    assert answer.status_code == 200, answer.text
    assert 'aria-label="Stored memories: 0 % used"' in answer.text
    assert "0 used of 10<" in answer.text
    rates = {"search": "number", "search.requests": "100", "search.seconds": "60", "write": "unlimited"}
    await visitor.post(path, group="rates", admin="default", **rates, **was, **{"admin.was": "default"})
    set_now = {
        "stored_memories": 10,
        "tokens_a_day": 5000,
        "search": {"requests": 100, "seconds": 60},
        "write": "unlimited",
    }
    assert await limits_of(site, tenant) == set_now
    told = (await site.client.get(f"/admin/v1/audit?tenant_id={tenant.id}", headers=ADMIN)).json()["results"]
    deeds = [its for its in told if its["action"] == "updateTenantLimits"]
    assert [its["details"]["fields"] for its in deeds] == [["search", "write"], ["stored_memories"], ["tokens_a_day"]]
    assert {its["actor"] for its in deeds} == {"admin"}
    both = {"group": "quotas", "once": "the-same", "stored_memories": "unlimited", "tokens_a_day.was": "5000"}
    await visitor.post(path, tokens_a_day="unlimited", **both, **{"stored_memories.was": "10"})
    again = await visitor.post(path, tokens_a_day="default", **both, **{"stored_memories.was": "10"})
    assert (again.status_code, "Nothing is saved" in again.text) == (422, False)
    assert (await limits_of(site, tenant))["tokens_a_day"] == "unlimited"
    back = {"stored_memories": "default", "stored_memories.was": "unlimited"}
    await visitor.post(path, group="quotas", **back, tokens_a_day="default", **{"tokens_a_day.was": "default"})
    assert "stored_memories" not in await limits_of(site, tenant)


async def test_a_limit_that_cannot_be_is_told_at_its_field_and_nothing_is_saved(site: Gateway) -> None:
    tenant, _ = await made(site)
    visitor = browser(site)
    await visitor.sign_in(ADMIN_KEY)
    path = f"/console/t/{tenant.id}/limits"
    await visitor.get(path)
    others = {"write": "unlimited", "admin": "default"}
    for requests, seconds, wrong in (
        ("0", "7200", {"search.requests", "search.seconds"}),
        ("many", "1", {"search.requests"}),
        ("9" * 400, "1", {"search.requests"}),
        ("", "1", {"search.requests"}),
        ("5", "1.5", {"search.seconds"}),
    ):
        given = {"search": "number", "search.requests": requests, "search.seconds": seconds, **others}
        answer = await visitor.post(path, group="rates", **given)
        assert answer.status_code == 422
        assert set(re.findall(r'aria-invalid="true" aria-describedby="x-(\S+)"', answer.text)) == wrong
        assert set(re.findall(r'class="wrong" id="x-(\S+)"', answer.text)) == wrong
        assert f'value="{requests}" aria-label="Requests that read: requests"' in answer.text
    for fields in ({"group": "sizes"}, {"group": "requests", "body_bytes": "unlimited"}, {"group": "quotas"}):
        assert (await visitor.post(path, **fields)).status_code == 422
    assert await limits_of(site, tenant) == {}
    visitor.headers["HX-Request"] = "true"
    told = await visitor.post(path, group="rates", search="number", **others)
    assert (told.status_code, told.text.count('aria-invalid="true"')) == (200, 2)
