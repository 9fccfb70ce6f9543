"""The console's door: who gets in, what their browser is given, and what ends it."""

import re
from typing import Any

import pytest
from redis.asyncio import Redis
from tests.integration.gateway.conftest import ADMIN, ADMIN_KEY, OPS_KEY, Gateway
from tests.integration.gateway.consoles import STAMP, browser, limits_of, made

pytestmark = pytest.mark.anyio


async def test_a_session_is_a_cookie_that_scripts_and_other_sites_cannot_reach(site: Gateway) -> None:
    tenant, key = await made(site)
    visitor = browser(site)
    answer = await visitor.sign_in(key.key)
    assert (answer.status_code, answer.headers["location"]) == (303, "/console")
    [cookie] = [its for its in visitor.set_cookies if its.startswith("memplane_console=")]
    assert {"HttpOnly", "SameSite=strict", "Path=/console"} <= {part.strip() for part in cookie.split(";")}
    assert "Secure" not in cookie
    visitor.headers["X-Forwarded-Proto"] = "https"
    await visitor.sign_in(key.key)
    assert all("Secure" in its for its in visitor.set_cookies)
    page = await visitor.get(f"/console/t/{tenant.id}")
    assert page.status_code == 200
    assert tenant.name in page.text
    assert key.key not in page.text


async def test_pages_allow_no_script_or_style_of_their_own_and_none_from_elsewhere(site: Gateway) -> None:
    tenant, key = await made(site)
    visitor = browser(site)
    await visitor.sign_in(key.key)
    for page in ("", "/keys", "/policy", "/jobs", "/audit"):
        answer = await visitor.get(f"/console/t/{tenant.id}{page}")
        assert answer.status_code == 200, answer.text
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["cache-control"] == "no-store"
        assert not re.search(r"<script>|<style|\sstyle=|\son\w+=|https?://", answer.text)


async def test_what_is_no_key_opens_nothing_and_is_not_told_apart(site: Gateway) -> None:
    tenant, key = await made(site)
    await site.client.delete(f"/admin/v1/tenants/{tenant.id}/keys/{key.id}", headers=ADMIN)
    visitor = browser(site)
    answers = [await visitor.sign_in(wrong) for wrong in (key.key, "nonsense", "", "ключ", "x" * 3000)]
    assert {answer.status_code for answer in answers} == {401}
    assert len({STAMP.sub("", answer.text) for answer in answers}) == 1
    assert "memplane_console" not in visitor.cookies


async def test_trying_keys_is_refused_after_ten_from_one_address(site: Gateway) -> None:
    visitor, other = browser(site), browser(site)
    statuses = [(await visitor.sign_in("nonsense")).status_code for _ in range(12)]
    assert statuses == [401] * 10 + [429] * 2
    assert (await other.sign_in(ADMIN_KEY)).status_code == 303


async def test_a_revoked_key_ends_its_session(site: Gateway) -> None:
    tenant, key = await made(site)
    visitor = browser(site)
    await visitor.sign_in(key.key)
    path = f"/console/t/{tenant.id}/jobs"
    assert (await visitor.get(path)).status_code == 200
    await site.client.delete(f"/admin/v1/tenants/{tenant.id}/keys/{key.id}", headers=ADMIN)
    answer = await visitor.get(path)
    assert (answer.status_code, answer.headers["location"]) == (303, "/console/sign-in")


async def test_a_session_that_was_signed_out_is_gone_from_the_server(site: Gateway) -> None:
    _, key = await made(site)
    visitor = browser(site)
    await visitor.sign_in(key.key)
    await visitor.get((await visitor.get("/console")).headers["location"])
    kept = dict(visitor.cookies)
    await visitor.post("/console/sign-out")
    assert visitor.cookies["memplane_console"] == ""
    visitor.cookies = kept
    assert (await visitor.get("/console")).headers["location"] == "/console/sign-in"


async def test_a_form_of_another_session_or_site_does_nothing(site: Gateway) -> None:
    tenant, key = await made(site)
    visitor, stranger = browser(site), browser(site)
    await visitor.sign_in(key.key)
    await stranger.sign_in(ADMIN_KEY)
    path = f"/console/t/{tenant.id}/keys"
    await stranger.get(path)
    await visitor.get(path)
    fields = {"name": "forged", "scopes": "memories:read"}
    assert (await visitor.post(path, stamp=stranger.stamp, **fields)).status_code == 400
    assert (await visitor.post(path, stamp="", **fields)).status_code == 400
    visitor.headers["Sec-Fetch-Site"] = "cross-site"
    assert (await visitor.post(path, **fields)).status_code == 400
    assert "forged" not in (await visitor.get(path)).text


async def test_a_tenants_key_sees_no_other_tenant_and_nothing_of_the_installation(site: Gateway) -> None:
    tenant, key = await made(site)
    other, _ = await made(site)
    visitor = browser(site)
    await visitor.sign_in(key.key)
    paths = [
        f"/console/t/{other.id}{page}" for page in ("", "/memories", "/keys", "/policy", "/jobs", "/audit", "/why")
    ]
    own = f"/console/t/{tenant.id}/limits"
    for path in [*paths, own, "/console/tenants", "/console/system", "/console/audit", "/console/live.json"]:
        answer = await visitor.get(path)
        assert answer.status_code == 404, path
        assert other.name not in answer.text
    await visitor.get(f"/console/t/{tenant.id}/keys")
    answer = await visitor.post(f"/console/t/{other.id}/keys", name="mine now", scopes="memories:read")
    assert answer.status_code == 404
    assert "Limits</a>" not in answer.text
    assert (await visitor.post(own, group="quotas", stored_memories="unlimited")).status_code == 404


async def test_scopes_limits_and_audit_are_those_of_the_api(site: Gateway) -> None:
    tenant, _ = await made(site)
    reader = await site.make_key(tenant, "memories:read")
    visitor = browser(site)
    await visitor.sign_in(reader.key)
    await visitor.get(f"/console/t/{tenant.id}")
    assert (await visitor.get(f"/console/t/{tenant.id}/keys")).status_code == 403
    answer = await visitor.post(f"/console/t/{tenant.id}/keys", name="more", scopes="tenant:admin")
    assert answer.status_code == 403
    told = (await site.client.get(f"/admin/v1/audit?tenant_id={tenant.id}", headers=ADMIN)).json()["results"]
    refused = [its for its in told if its["result"] == "refused"]
    source = visitor.headers["X-Forwarded-For"]
    assert [(its["actor"], its["action"], its["source"]) for its in refused] == [(reader.id, "createOwnKey", source)]


async def test_the_ops_key_reads_and_changes_nothing(site: Gateway) -> None:
    tenant, _ = await made(site)
    visitor = browser(site)
    await visitor.sign_in(OPS_KEY)
    page = await visitor.get(f"/console/t/{tenant.id}/keys")
    assert page.status_code == 200
    assert "Create a key" not in page.text
    answer = await visitor.post(f"/console/t/{tenant.id}/keys", name="x", scopes="memories:read")
    assert answer.status_code == 403
    page = await visitor.get(f"/console/t/{tenant.id}/limits")
    assert (page.status_code, "Save " in page.text) == (200, False)
    unlimited = {"stored_memories": "unlimited", "tokens_a_day": "unlimited"}
    answer = await visitor.post(f"/console/t/{tenant.id}/limits", group="quotas", **unlimited)
    assert answer.status_code == 403
    assert await limits_of(site, tenant) == {}


async def test_the_same_form_twice_makes_one_key(site: Gateway) -> None:
    tenant, _ = await made(site)
    visitor = browser(site)
    await visitor.sign_in(ADMIN_KEY)
    path = f"/console/t/{tenant.id}/keys"
    await visitor.get(path)
    first, second = [await visitor.post(path, once="the-same", name="once", scopes="memories:read") for _ in range(2)]
    assert (first.status_code, second.status_code) == (200, 409)
    assert "mp_live_" in first.text
    assert "mp_live_" not in second.text
    assert (await visitor.get(path)).text.count(">once<") == 1


async def test_whoever_replaces_their_own_key_at_once_goes_on_with_the_new_one(site: Gateway) -> None:
    tenant, key = await made(site)
    visitor = browser(site)
    await visitor.sign_in(key.key)
    path = f"/console/t/{tenant.id}/keys"
    await visitor.get(path)
    answer = await visitor.post(f"{path}/{key.id}", do="rotate", overlap_h="0")
    assert answer.status_code == 200, answer.text
    [secret] = re.findall(r"mp_live_[0-9A-Za-z]+", answer.text)
    assert secret != key.key
    asking = {"Authorization": f"Bearer {key.key}"}
    assert (await site.client.get("/v1/whoami", headers=asking)).status_code == 401
    assert (await visitor.get(path)).status_code == 200


async def test_a_group_of_the_policy_is_changed_and_the_rest_stays(site: Gateway) -> None:
    tenant, key = await made(site)
    headers = {"Authorization": f"Bearer {key.key}"}
    before = (await site.client.get("/v1/policy", headers=headers)).json()
    visitor = browser(site)
    await visitor.sign_in(key.key)
    path = f"/console/t/{tenant.id}/policy"
    await visitor.get(path)
    ranking = {"weights.match": "0.5", "weights.recency": "0", "weights.importance": "0.5", "weights.priority": "0"}
    for group, fields in (
        ("priorities", {"every_hours": "48", "feedback_weight": "2"}),
        ("sessions", {"kind": "fifo", "buffer_size": "9", "overflow": "drop"}),
        ("ranking", {**ranking, "decay_rate": "0.02"}),
    ):
        answer = await visitor.post(path, group=group, **fields)
        assert answer.status_code == 200, answer.text
        assert "is changed" in answer.text
    after = (await site.client.get("/v1/policy", headers=headers)).json()
    changed = {"enabled": False, "every_hours": 48, "feedback_weight": 2.0}
    assert after["maintenance"] == {
        **before["maintenance"],
        "priorities": {**before["maintenance"]["priorities"], **changed},
    }
    assert after["short_term"] == {**before["short_term"], "buffer_size": 9, "overflow": "drop"}
    assert after["weights"] == {"match": 0.5, "recency": 0.0, "importance": 0.5, "priority": 0.0}
    assert after["decay_rate"] == 0.02


async def test_forms_that_no_page_makes_are_refused_and_break_nothing(site: Gateway) -> None:
    tenant, key = await made(site)
    visitor = browser(site)
    await visitor.sign_in(key.key)
    at = f"/console/t/{tenant.id}"
    await visitor.get(at)
    for path, fields in (
        ("/keys", {"name": "\0", "scopes": "everything"}),
        ("/keys", {"name": "x", "scopes": "memories:read", "days": "-1"}),
        (f"/keys/{key.id}", {"do": "nothing"}),
        ("/keys/..", {"do": "revoke"}),
        ("/policy", {"group": "nothing"}),
        ("/policy", {"group": "prune", "max_idle_days": "many"}),
        ("/jobs", {"kind": "invent"}),
        ("/jobs", {"kind": "prune", "max_idle_days": "1e999"}),
        ("/memories", {"more": "[]"}),
        ("/memories", {"query": "x", "more": '{"a": NaN}'}),
        ("/why", {"memory": "no id", "query": "x"}),
    ):
        answer = await visitor.post(f"{at}{path}", **fields)
        assert 400 <= answer.status_code < 500, (path, fields, answer.status_code, answer.text)
    for body in (b"stamp=%ff%fe&key=%00", b"\xff\xfe=\x00", b"&&&=;"):
        answer = await site.client.post(
            "/console/sign-in", content=body, headers={"Content-Type": "application/x-www-form-urlencoded"}
        )
        assert 400 <= answer.status_code < 500, (body, answer.status_code)


async def test_an_operator_is_told_which_part_is_away(site: Gateway) -> None:
    visitor = browser(site)
    await visitor.sign_in(ADMIN_KEY)
    page = (await visitor.get("/console/system")).text
    told = dict(re.findall(r'<th scope="row">(\w+)</th><td>\s*<span class="badge \w*">(\w+)</span>', page))
    assert (told["postgres"], told["gateway"], told["worker"]) == ("ok", "ok", "unavailable")
    assert (await visitor.get("/console")).text.count("unavailable") >= 1


async def test_valkey_holds_nothing_that_opens_anything(site: Gateway) -> None:
    _, key = await made(site)
    visitor = browser(site)
    await visitor.sign_in(key.key)
    redis: Any = Redis.from_url(site.valkey.url)  # pyright: ignore[reportUnknownMemberType]
    names: list[bytes] = [name async for name in redis.scan_iter("mp:console:*")]
    values: list[bytes] = [await redis.get(name) or b"" for name in names if b"tries" not in name]
    await redis.aclose()
    assert values
    stored = b"".join([*names, *values])
    assert key.key.encode() not in stored
    assert visitor.cookies["memplane_console"].encode() not in stored


async def test_it_can_be_switched_off(gateway: Gateway) -> None:
    async with gateway.running(console=False) as client:
        for path in ("/console", "/console/sign-in", "/console/assets/console.js"):
            assert (await client.get(path)).status_code == 404


async def test_the_document_says_nothing_of_it(gateway: Gateway) -> None:
    async with gateway.running(docs=True) as client:
        document = (await client.get("/openapi.json")).json()
    assert [path for path in document["paths"] if path.startswith("/console")] == []
