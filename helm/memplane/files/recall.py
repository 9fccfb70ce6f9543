"""What `helm test` runs: two tenants write and recall, and neither sees the other's memories. Needs no library."""

import json
import os
import sys
import time
import urllib.error
import urllib.request
import uuid
from pathlib import Path

URL = os.environ["MEMPLANE_TEST_URL"].rstrip("/")
DEADLINE = time.monotonic() + float(os.environ.get("MEMPLANE_TEST_DEADLINE_S", "300"))
ADMIN_KEY = Path(os.environ["MEMPLANE_SECRETS_DIR"], "MEMPLANE_GATEWAY__ADMIN_KEY").read_text(encoding="utf-8").strip()


class Refused(Exception):
    """An answer of 400 or more that another try would not change."""

    def __init__(self, status: int, body: str) -> None:
        super().__init__(f"{status}: {body}")
        self.status = status


def once(method: str, path: str, key: str, body: object = None, *, repeat_key: str = "") -> dict:
    """One request; raises Refused, or OSError where there is no answer."""
    headers = {"Authorization": f"Bearer {key}"}
    if body is not None:
        headers["Content-Type"] = "application/json"
    if repeat_key:
        headers["Idempotency-Key"] = repeat_key
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(URL + path, data=data, headers=headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return json.loads(response.read() or b"{}")
    except urllib.error.HTTPError as error:
        raise Refused(error.code, error.read().decode(errors="replace")) from None


def ask(method: str, path: str, key: str, body: object = None) -> dict:
    """The same, again and again while the platform is starting. A write is done once, however often it is sent."""
    repeat_key = "" if method == "GET" else uuid.uuid4().hex
    while True:
        try:
            return once(method, path, key, body, repeat_key=repeat_key)
        except Refused as error:
            if error.status < 500 or time.monotonic() > DEADLINE:
                raise
        except OSError:
            if time.monotonic() > DEADLINE:
                raise
        time.sleep(1)


def found(key: str, query: str) -> list[str]:
    """What a tenant's search recalls."""
    answer = ask("POST", "/v1/memories/search", key, {"query": query, "top_k": 10})
    return [result["memory"]["content"] if "memory" in result else result["content"] for result in answer["results"]]


def check(what: str, *, holds: bool) -> None:
    """Say it, and end where it does not hold."""
    print(("PASS " if holds else "FAIL ") + what, flush=True)
    if not holds:
        sys.exit(1)


def main() -> None:
    """Two tenants, a memory each, recalled by its owner alone; then both are deleted."""
    run = uuid.uuid4().hex[:12]
    tenants: list[tuple[str, str]] = []
    keys: list[str] = []
    facts = ["The blue heron nests behind the old mill.", "Invoice 4711 was paid on the third of May."]
    try:
        for number in (1, 2):
            name = f"helm-test-{run}-{number}"
            tenant = ask("POST", "/admin/v1/tenants", ADMIN_KEY, {"name": name})
            tenants.append((tenant["id"], name))
            wanted = {"name": "helm-test", "scopes": ["memories:read", "memories:write"]}
            keys.append(ask("POST", f"/admin/v1/tenants/{tenant['id']}/keys", ADMIN_KEY, wanted)["key"])
        check("two tenants and their keys were made", holds=True)
        ids = [ask("POST", "/v1/memories", key, {"content": fact})["id"] for key, fact in zip(keys, facts, strict=True)]
        check("each wrote a memory", holds=True)
        for key, fact, mine, theirs in zip(keys, facts, ids, reversed(ids), strict=True):
            check("a memory is recalled by its tenant", holds=fact in found(key, fact))
            (other,) = set(facts) - {fact}
            check("and the other tenant's is not", holds=other not in found(key, other))
            check("its own can be read", holds=ask("GET", f"/v1/memories/{mine}", key)["content"] == fact)
            try:
                ask("GET", f"/v1/memories/{theirs}", key)
                denied = False
            except Refused as error:
                denied = error.status == 404
            check("the other's cannot", holds=denied)
        try:
            ask("GET", "/admin/v1/tenants", keys[0])
            denied = False
        except Refused as error:
            denied = error.status in (401, 403)
        check("a tenant's key does not open /admin", holds=denied)
    finally:
        for tenant_id, name in tenants:
            ask("DELETE", f"/admin/v1/tenants/{tenant_id}?name={name}", ADMIN_KEY)
    check("both tenants were deleted", holds=True)


main()
