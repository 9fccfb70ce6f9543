"""The console in a real browser, on the whole platform: what a person does with it, and that it asks nobody else."""

import hashlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import httpx2
import msgspec
import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright
from tests.e2e.conftest import Platform

from memplane_core.testing.chromium import ARGUMENTS, chromium

SOON_MS = 20_000
"""A job begins within 5 s; all else is there at once."""

expect.set_options(timeout=SOON_MS)


class Site:
    """The console as one visitor sees it, with all that went wrong on its pages."""

    def __init__(self, browser: Browser, platform: Platform) -> None:
        self.platform = platform
        self.base = platform.credentials.url
        self.faults: list[str] = []
        self._context = browser.new_context()
        self.page: Page = self._context.new_page()
        self.page.set_default_timeout(SOON_MS)
        self.page.on("console", lambda said: self._note(said.type in ("error", "warning"), said.text))
        self.page.on("pageerror", lambda error: self._note(True, str(error)))
        self.page.on("request", lambda asked: self._note(not asked.url.startswith(self.base), f"asked {asked.url}"))

    def _note(self, wrong: bool, what: str) -> None:
        if wrong:
            self.faults.append(what)

    def go(self, path: str) -> None:
        self.page.goto(f"{self.base}/console{path}")

    def sign_in(self, key: str) -> None:
        self.go("/sign-in")
        self.page.get_by_label("API key, or the admin key").fill(key)
        self.page.get_by_role("button", name="Sign in").click()
        self.page.get_by_role("navigation").wait_for()

    def close(self) -> None:
        self.page.wait_for_load_state("networkidle")
        self._context.close()
        assert self.faults == []


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=chromium(), args=list(ARGUMENTS))
        yield launched
        launched.close()


@pytest.fixture
def site(browser: Browser, platform: Platform) -> Iterator[Site]:
    opened = Site(browser, platform)
    yield opened
    opened.close()


@pytest.fixture
def tenant(platform: Platform) -> Iterator[httpx2.Client]:
    """A client of a tenant of its own, with every scope. `key` and `at` of it are among its headers and its base."""
    given = platform.credentials
    with httpx2.Client(
        base_url=given.url, headers={"Authorization": f"Bearer {given.admin_key}"}, timeout=30, trust_env=False
    ) as admin:
        made = admin.post("/admin/v1/tenants", json={"name": f"console {uuid4().hex[:8]}"}).raise_for_status().json()
        scopes = ["memories:read", "memories:write", "memories:admin", "tenant:admin"]
        path = f"/admin/v1/tenants/{made['id']}/keys"
        key = admin.post(path, json={"name": "owner", "scopes": scopes}).raise_for_status().json()["key"]
    with httpx2.Client(
        base_url=given.url, headers={"Authorization": f"Bearer {key}"}, timeout=30, trust_env=False
    ) as client:
        yield client


def key_of(client: httpx2.Client) -> str:
    return client.headers["Authorization"].removeprefix("Bearer ")


def at(client: httpx2.Client) -> str:
    return f"/t/{client.get('/v1/whoami').raise_for_status().json()['tenant_id']}"


def wrote(client: httpx2.Client, content: str, **fields: Any) -> str:
    return client.post("/v1/memories", json={"content": content, **fields}).raise_for_status().json()["id"]


def aged(client: httpx2.Client, memory_id: str) -> None:
    """Make a memory one that nobody has used for years: taken out by an export, and back in by an import."""
    lines = client.get("/v1/export", params={"history": "false"}).raise_for_status().text.splitlines()
    [place] = [n for n, line in enumerate(lines) if memory_id in line and '"kind":"memory"' in line]
    old = (datetime.now(UTC) - timedelta(days=800)).isoformat()
    memory = msgspec.json.decode(lines[place], type=dict[str, Any])
    memory |= {name: old for name in ("created_at", "updated_at", "last_accessed_at", "occurred_at") if name in memory}
    client.delete(f"/v1/memories/{memory_id}").raise_for_status()
    lines[place] = msgspec.json.encode(memory).decode()
    *above, last = lines
    digest = hashlib.sha256("".join(f"{line}\n" for line in above).encode()).hexdigest()
    trailer = {**msgspec.json.decode(last, type=dict[str, Any]), "sha256": digest}
    body = "".join(f"{line}\n" for line in (*above, msgspec.json.encode(trailer).decode()))
    answer = client.post("/v1/import", content=body, headers={"Content-Type": "application/x-ndjson"})
    assert answer.status_code == 200, answer.text


def test_who_signs_in_sees_their_tenant_and_is_out_again_when_they_sign_out(site: Site, tenant: httpx2.Client) -> None:
    wrote(tenant, "the keys are under the red stone")
    site.go("")
    expect(site.page).to_have_title("Sign in · Memplane")
    site.sign_in(key_of(tenant))
    expect(site.page.get_by_role("heading", level=1)).to_contain_text("console ")
    expect(site.page.locator(".tiles li").first).to_contain_text("1")
    expect(site.page.locator("#chart-days canvas")).to_be_visible()
    assert key_of(tenant) not in site.page.content()
    assert "memplane_console" not in str(site.page.evaluate("document.cookie"))
    site.page.get_by_role("button", name="Sign out").click()
    expect(site.page.get_by_label("API key, or the admin key")).to_be_visible()
    site.go(at(tenant))
    expect(site.page).to_have_title("Sign in · Memplane")


def test_a_key_is_made_shown_once_used_and_revoked(site: Site, tenant: httpx2.Client) -> None:
    site.sign_in(key_of(tenant))
    site.go(f"{at(tenant)}/keys")
    site.page.get_by_text("Create a key").click()
    site.page.get_by_label("Name").fill("of the app")
    site.page.get_by_role("checkbox", name="memories:read").check()
    site.page.get_by_role("button", name="Create the key").click()
    secret = site.page.locator("#secret").inner_text()
    asking = {"Authorization": f"Bearer {secret}"}
    assert httpx2.get(f"{site.base}/v1/whoami", headers=asking, trust_env=False).json()["key_name"] == "of the app"
    site.go(f"{at(tenant)}/keys")
    assert secret not in site.page.content()
    row = site.page.locator("li.key", has_text="of the app")
    row.get_by_text("Revoke", exact=True).click()
    row.get_by_role("button", name="Revoke “of the app”").click()
    expect(site.page.locator("li.key", has_text="of the app")).to_contain_text("revoked")
    expect(site.page.locator("#notice .note")).to_be_focused()
    assert httpx2.get(f"{site.base}/v1/whoami", headers=asking, trust_env=False).status_code == 401
    site.go(f"{at(tenant)}/audit")
    expect(site.page.locator("tbody tr").first).to_contain_text("Revoke own key")


def test_a_search_draws_what_its_scores_are_made_of_and_leaves_no_trace(site: Site, tenant: httpx2.Client) -> None:
    kept = wrote(tenant, "the keys are under the red stone", user_id="ana")
    wrote(tenant, "a blue feather", user_id="bob")
    before = tenant.get(f"/v1/memories/{kept}").json()
    site.sign_in(key_of(tenant))
    site.go(f"{at(tenant)}/memories")
    site.page.get_by_label("Question").fill("where are the keys?")
    site.page.get_by_role("button", name="Search").click()
    first = site.page.locator("li.memory").first
    expect(first).to_contain_text("under the red stone")
    score = float(first.locator(".score strong").inner_text())
    widths = [float(part.get_attribute("width") or 0) for part in first.locator(".bar rect:not(.track)").all()]
    assert len(widths) == 4
    assert sum(widths) == pytest.approx(100 * score, abs=0.6)
    expect(site.page.locator("li.memory")).to_have_count(2)
    site.page.get_by_text("Filters", exact=True).click()
    site.page.get_by_label("User id").fill("bob")
    site.page.get_by_role("button", name="Search").click()
    expect(site.page.locator("li.memory")).to_have_count(1)
    expect(site.page.locator("li.memory")).to_contain_text("a blue feather")
    after = tenant.get(f"/v1/memories/{kept}").json()
    assert (after["access_count"], after["last_accessed_at"]) == (before["access_count"], before["last_accessed_at"])


def test_a_memory_is_pinned_forgotten_found_missing_and_restored(site: Site, tenant: httpx2.Client) -> None:
    kept = wrote(tenant, "the keys are under the red stone")
    site.sign_in(key_of(tenant))
    site.go(f"{at(tenant)}/memories/{kept}")
    site.page.get_by_role("button", name="Pin").click()
    expect(site.page.locator("article")).to_contain_text("pinned")
    site.page.get_by_role("button", name="Forget").click()
    expect(site.page.get_by_role("button", name="Restore")).to_be_visible()
    site.go(f"{at(tenant)}/why?memory={kept}")
    site.page.get_by_label("Question").fill("where are the keys?")
    site.page.get_by_role("button", name="Find out").click()
    expect(site.page.locator("#answer")).to_have_text("It is forgotten.")
    site.go(f"{at(tenant)}/memories/{kept}")
    site.page.get_by_role("button", name="Restore").click()
    expect(site.page.get_by_role("button", name="Forget")).to_be_visible()
    assert tenant.get(f"/v1/memories/{kept}").json()["state"] == "active"
    expect(site.page.locator(".history li")).to_have_count(4)


def test_a_merge_is_undone_on_the_page_of_the_memory_that_stayed(site: Site, tenant: httpx2.Client) -> None:
    kept, other = wrote(tenant, "the keys are under the red stone"), wrote(tenant, "keys: under the red stone")
    body = {"ids": [kept, other], "survivor": kept}
    tenant.post("/v1/memories/merge", json=body).raise_for_status()
    site.sign_in(key_of(tenant))
    site.go(f"{at(tenant)}/memories/{kept}")
    stands = site.page.get_by_role("region", name="Stands for 1 other")
    expect(stands.get_by_role("link", name=other)).to_be_visible()
    stands.get_by_role("button", name="Undo the merge").click()
    expect(site.page.locator("#notice .note")).to_have_text("1 memory is active again.")
    expect(stands).to_have_count(0)
    assert tenant.get(f"/v1/memories/{other}").json()["state"] == "active"


def test_an_operator_sets_a_quota_that_holds_at_once(site: Site, tenant: httpx2.Client) -> None:
    wrote(tenant, "the keys are under the red stone")
    site.sign_in(site.platform.credentials.admin_key)
    site.go(f"{at(tenant)}/limits")
    quota = site.page.get_by_role("group", name="Stored memories")
    box = quota.get_by_label("Stored memories: memories")
    expect(box).to_be_hidden()
    quota.get_by_label("At most").check()
    box.fill("-1")
    site.page.get_by_role("button", name="Save quotas").click()
    expect(box).to_have_accessible_description("Memories: must be a whole number, 0 to 1,000,000,000,000,000.")
    box.fill("1")
    site.page.get_by_role("button", name="Save quotas").click()
    expect(quota.get_by_role("img", name="Stored memories: 100 % used")).to_be_visible()
    expect(site.page.locator("#notice .note")).to_be_focused()
    refused = tenant.post("/v1/memories", json={"content": "one too many"})
    assert (refused.status_code, refused.json()["code"]) == (403, "quota_exceeded")
    quota.get_by_label("Unlimited").check()
    site.page.get_by_role("button", name="Save quotas").click()
    expect(quota).to_contain_text("1 used")
    wrote(tenant, "one more")


def test_prune_is_tried_first_and_then_forgets_for_real(site: Site, tenant: httpx2.Client) -> None:
    idle = wrote(tenant, "of no use to anybody", priority=1)
    wrote(tenant, "of use today", priority=1)
    aged(tenant, idle)
    site.sign_in(key_of(tenant))
    site.go(f"{at(tenant)}/jobs")
    site.page.locator("summary", has_text="Prune").click()
    form = site.page.get_by_role("form", name="prune")
    form.get_by_label("Idle for days").fill("0")
    form.get_by_role("button", name="Dry run").click()
    expect(site.page.locator("#notice .note")).to_contain_text("max_idle_days")
    form.get_by_label("Idle for days").fill("300")
    form.get_by_role("button", name="Dry run").click()
    site.page.locator("#job[data-state=done]").wait_for()
    expect(site.page.locator(".tiles li", has_text="Forgotten")).to_contain_text("1")
    assert tenant.get(f"/v1/memories/{idle}").json()["state"] == "active"
    site.page.get_by_role("button", name="Run it for real").click()
    expect(site.page.get_by_role("heading", level=1)).to_have_text("Prune")
    site.page.locator("#job[data-state=done]").wait_for()
    expect(site.page.locator(".tiles li", has_text="Forgotten")).to_contain_text("1")
    expect(site.page.locator(".sample")).to_contain_text(idle)
    assert tenant.get(f"/v1/memories/{idle}").json()["state"] == "forgotten"


def test_an_admin_opens_memories_with_a_key_that_ends_with_the_session(site: Site, tenant: httpx2.Client) -> None:
    wrote(tenant, "the keys are under the red stone")
    where = at(tenant)
    site.sign_in(site.platform.credentials.admin_key)
    expect(site.page.locator("[data-tell=status]")).to_have_text("ok")
    site.go(f"{where}/memories")
    site.page.get_by_role("button", name="Open the memories for an hour").click()
    expect(site.page.locator("li.memory")).to_contain_text("under the red stone")
    lent = [key for key in tenant.get("/v1/keys").json()["results"] if key["name"] == "console"]
    assert [(key["scopes"], key["revoked_at"]) for key in lent] == [(["memories:read", "memories:write"], None)]
    site.page.get_by_role("button", name="Sign out").click()
    expect(site.page.get_by_label("API key, or the admin key")).to_be_visible()
    assert [key["revoked_at"] is None for key in tenant.get("/v1/keys").json()["results"]] == [False, True][::-1]


def test_every_page_fits_its_window_and_names_what_can_be_filled_in(
    browser: Browser, platform: Platform, tenant: httpx2.Client
) -> None:
    memory = wrote(tenant, "a word of length " + "x" * 300, metadata={"k": "v" * 200})
    pages = ["", "/memories", f"/memories/{memory}", "/why", "/jobs", "/policy", "/keys", "/audit"]
    where = at(tenant)
    for key, paths in (
        (key_of(tenant), [where + page for page in pages]),
        (
            platform.credentials.admin_key,
            ["", "/tenants", "/system", "/audit", where, f"{where}/memories", f"{where}/limits"],
        ),
    ):
        site = Site(browser, platform)
        site.sign_in(key)
        for path in paths:
            site.go(path)
            too_wide = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
            for width in (1280, 390):
                site.page.set_viewport_size({"width": width, "height": 900})
                assert not site.page.evaluate(too_wide), (path, width)
            unnamed = "[...document.querySelectorAll('main :is(input:not([type=hidden]), select, textarea)')]"
            unnamed += ".filter(its => !its.labels.length && !its.ariaLabel).map(its => its.outerHTML)"
            assert site.page.evaluate(unnamed) == [], path
            twice = "(ids => ids.filter((id, n) => ids.indexOf(id) !== n))([...document.querySelectorAll('[id]')]"
            assert site.page.evaluate(twice + ".map(its => its.id))") == [], path
        site.close()
