"""Writes and searches for a while; ends with `requests=N failed=M lost=L`. Needs no library.

What was acknowledged is asked for again at the end: `lost` counts what is not there, or is not in the index.
"""

import json
import os
import sys
import threading
import time
import urllib.error
import urllib.request
import uuid
from pathlib import Path
from typing import Any

URL = os.environ["MEMPLANE_TEST_URL"].rstrip("/")
SECONDS = float(os.environ["LOAD_SECONDS"])
THREADS = 4
SETTLE_S = 120.0


def send(method: str, path: str, key: str, body: object = None, *, timeout_s: float = 30.0) -> dict[str, Any]:
    """One request on a connection of its own, and no second try. Raises OSError where it fails."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    request = urllib.request.Request(URL + path, data=data, headers=headers, method=method)
    with urllib.request.urlopen(request, timeout=timeout_s) as response:
        return json.loads(response.read() or b"{}")


class Load:
    """What the threads have done."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.requests = 0
        self.failed: list[str] = []
        self.ids: list[str] = []
        self._lock = threading.Lock()

    def run(self, until: float) -> None:
        """Write and search in turns."""
        while time.monotonic() < until:
            fact = f"The parcel {uuid.uuid4().hex} went to the harbour."
            self._try("POST", "/v1/memories", {"content": fact})
            self._try("POST", "/v1/memories/search", {"query": fact, "top_k": 3})

    def _try(self, method: str, path: str, body: dict[str, Any]) -> None:
        try:
            answer = send(method, path, self.key, body)
            error = ""
        except OSError as fault:
            answer, error = {}, f"{path}: {type(fault).__name__} {fault}"
        with self._lock:
            self.requests += 1
            if error:
                self.failed.append(error)
            elif path == "/v1/memories":
                self.ids.append(answer["id"])

    def lost(self) -> int:
        """How many of the acknowledged memories are not there, or not indexed after two minutes."""
        deadline = time.monotonic() + SETTLE_S
        waiting = list(self.ids)
        while waiting and time.monotonic() < deadline:
            left: list[str] = []
            for memory in waiting:
                try:
                    if send("GET", f"/v1/memories/{memory}", self.key)["index_state"] != "indexed":
                        left.append(memory)
                except urllib.error.HTTPError as error:
                    if error.code != 404:
                        left.append(memory)
                    else:
                        return len(waiting)
                except OSError:
                    left.append(memory)
            waiting = left
            time.sleep(2 if waiting else 0)
        return len(waiting)


def main() -> int:
    """Make a tenant, load it, look what is there, and delete it."""
    admin = Path("/run/memplane/secrets/admin-key").read_text(encoding="utf-8").strip()
    name = f"load-{uuid.uuid4().hex[:12]}"
    tenant = send("POST", "/admin/v1/tenants", admin, {"name": name})["id"]
    wanted = {"name": "load", "scopes": ["memories:read", "memories:write"]}
    load = Load(send("POST", f"/admin/v1/tenants/{tenant}/keys", admin, wanted)["key"])
    until = time.monotonic() + SECONDS
    threads = [threading.Thread(target=load.run, args=(until,)) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lost = load.lost()
    send("DELETE", f"/admin/v1/tenants/{tenant}?name={name}", admin)
    for error in load.failed[:20]:
        print(error)
    print(f"requests={load.requests} failed={len(load.failed)} lost={lost}")
    return 0


sys.exit(main())
