"""What must not be said: secrets and what memories hold, in logs, in errors, and at a start that fails."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final
from urllib.parse import urlsplit

import httpx2
from tests.e2e.hardening.conftest import INTERNAL_SECRET, Door

from memplane_core.testing.ports import reserved_port
from memplane_core.testing.process import ServiceProcess
from memplane_core.testing.stack import Stack

MARK: Final = "zqxjkvb-marker"
"""In all that a caller says in these tests."""

FORGED: Final = '\n{"event": "forged"}\x1b[31m'


def secrets_of(stack: Stack, door: Door) -> dict[str, str]:
    """What nobody may see, by name. Of an API key only the first part is public."""
    addresses = {name: stack.env[name] for name in ("MEMPLANE_POSTGRES__URL", "MEMPLANE_REDIS__CACHE_URL")}
    passwords = {name: urlsplit(url).password or "" for name, url in addresses.items()}
    assert all(passwords.values())
    return passwords | {
        "admin key": stack.admin_key,
        "API key": door.tenant.key[len("mp_live_") + 12 :],
        "pepper": stack.env["MEMPLANE_GATEWAY__KEY_PEPPER"],
        "internal secret": INTERNAL_SECRET,
    }


def services_of(stack: Stack) -> list[ServiceProcess]:
    """Every process of ours."""
    return [stack.embedding, stack.worker, stack.beat, *stack.retrievals, *stack.gateways]


def use_everything(client: httpx2.Client, door: Door) -> Iterator[httpx2.Response]:
    """A session in which every value of the caller's has the mark in it, and much of it is wrong."""
    memory = {"content": f"{MARK} tea at five", "user_id": f"{MARK} ann", "metadata": {MARK: MARK}}
    written = client.post("/v1/memories", json=memory)
    yield written
    path = f"/v1/memories/{written.json().get('id', '0' * 32)}"
    yield client.post("/v1/memories/batch", json={"memories": [memory, memory], "wait": "index"})
    yield client.post("/v1/memories/search", json={"query": f"{MARK} tea", "filters": {"user_id": f"{MARK} ann"}})
    yield client.get("/v1/memories", params={"user_id": f"{MARK} ann"})
    yield client.get("/v1/entities", params={"type": "user"})
    yield client.patch(path, json={"content": f"{MARK} coffee"}, headers={"Idempotency-Key": f"{MARK} once"})
    yield client.get(f"{path}/history")
    yield client.delete(path)
    yield client.post("/v1/keys", json={"name": f"{MARK} key", "scopes": ["memories:read"]})
    for body in (
        memory | {"importance": MARK},
        memory | {MARK: 1},
        memory | {"content": f"{MARK}\0"},
        memory | {"occurred_at": f"{MARK}"},
    ):
        yield client.post("/v1/memories", json=body)
    yield client.post("/v1/memories", content=f'{{"{MARK}": '.encode(), headers={"Content-Type": "application/json"})
    yield client.post("/v1/memories/search", json={"query": MARK, "filters": {MARK: MARK}})
    yield client.get("/v1/memories", params={MARK: MARK})
    yield client.get(f"/v1/{MARK}/%E2%82%AC")
    yield client.delete(f"/v1/keys/{MARK}")
    yield client.get("/v1/whoami", headers={"User-Agent": f"{MARK} browser", "X-Request-Id": f"{MARK} id"})
    yield client.get("/v1/whoami", headers={"Authorization": f"Bearer {MARK}"})
    yield client.get("/v1/whoami", headers={"Authorization": f"Bearer {door.tenant.key[:-1]}"})


def leaks(text: str, words: Mapping[str, str]) -> list[str]:
    """Lines of `text` that hold one of the words, with its name."""
    return [f"{name}: {line[:300]}" for line in text.splitlines() for name, word in words.items() if word in line]


def test_logs_and_errors_hold_no_secret_and_no_content_whatever_fails(stack: Stack, door: Door) -> None:
    secrets = secrets_of(stack, door)
    problems: list[httpx2.Response] = []
    with stack.client(door.tenant) as client, stack.admin() as admin:
        for answer in use_everything(client, door):
            problems += [answer] * (answer.status_code >= 400)
        for wrong in ({"name": f"{MARK}", "nothing": 1}, {"name": "hardening"}):
            problems.append(admin.post("/admin/v1/tenants", json=wrong))
        statuses: set[int] = set()
        stack.postgres.kill()
        try:
            for answer in use_everything(client, door):
                statuses.add(answer.status_code)
                problems += [answer] * (answer.status_code >= 400)
            problems.append(client.get("/readyz"))
        finally:
            stack.postgres.start()
        dying = threading.Timer(0.2, stack.embedding.kill)
        dying.start()
        try:
            for answer in use_everything(client, door):
                problems += [answer] * (answer.status_code >= 400)
        finally:
            dying.join()
            stack.embedding.start()
        assert client.get("/v1/whoami").status_code == 200
    assert {503, 422} <= statuses
    for answer in problems:
        assert answer.status_code != 500, answer.text
        assert not leaks(answer.text, secrets), answer.text
        if answer.status_code >= 500:
            assert MARK not in answer.text
            assert "5432" not in answer.text
    said = {process.url: process.log() for process in services_of(stack)}
    said["postgres"] = stack.postgres.log.read_text(errors="replace")
    assert not [line for text in said.values() for line in leaks(text, secrets | {"content": MARK})]


def test_every_line_is_one_object_and_none_can_be_forged(stack: Stack, door: Door) -> None:
    answers = [
        door.ask("GET", "/v1/" + "".join(f"%{ord(char):02x}" for char in FORGED)),
        door.ask("GET", "/v1/memories?user_id=%0A%7B%22event%22:%22forged%22%7D%1B%5B31m"),
        door.ask("GET", "/v1/whoami", 'User-Agent: x\t{"event": "forged"}', 'X-Request-Id: {"event":"forged"}'),
        door.ask("POST", "/v1/keys", body=json.dumps({"name": FORGED, "scopes": ["memories:read"]}).encode()),
        door.ask(
            "POST", "/v1/memories", body=json.dumps({"content": "x", "user_id": FORGED, "scene": [FORGED]}).encode()
        ),
    ]
    assert [answer.status for answer in answers] == [404, 200, 200, 422, 201]
    for process in services_of(stack):
        lines = [line for line in process.log().split("\n") if line]
        assert len(lines) >= 1, process.url
        for line in lines:
            if process in (stack.worker, stack.beat) and not line.startswith("{"):
                continue  # Celery greets on its own
            assert isinstance(json.loads(line), dict), line
            assert "\x1b" not in line
            assert "forged" not in line


SETTINGS: Final = {
    "MEMPLANE_POSTGRES__URL": f"postgresql://u:{MARK}-pw@127.0.0.1:1/x",
    "MEMPLANE_REDIS__BROKER_URL": f"redis://:{MARK}-pw@127.0.0.1:1/0",
    "MEMPLANE_REDIS__CACHE_URL": f"redis://:{MARK}-pw@127.0.0.1:1/1",
    "MEMPLANE_MILVUS__URI": "http://127.0.0.1:1",
    "MEMPLANE_MILVUS__TOKEN": f"root:{MARK}-pw",
    "MEMPLANE_TRUST__INTERNAL_SECRET": f"{MARK}-secret-that-is-long-enough",
    "MEMPLANE_GATEWAY__KEY_PEPPER": f"{MARK}-pepper-that-is-long-enough",
    "MEMPLANE_GATEWAY__ADMIN_KEY": f"{MARK}-admin-key-that-is-long-enough",
    "MEMPLANE_EMBEDDING__DEFAULT_MODEL": "all-MiniLM-L6-v2",
    "MEMPLANE_LOG__LEVEL": "debug",
}


WRONG: Final[Sequence[tuple[str, Mapping[str, str]]]] = (
    ("memplane_gateway", {"MEMPLANE_GATEWAY__ADMIN_KEY": MARK}),
    ("memplane_gateway", {"MEMPLANE_GATEWAY__KEY_PEPPERS": f'["{MARK}'}),
    ("memplane_retrieval", {"MEMPLANE_MILVUS__URI": f"http://root:{MARK}-pw@127.0.0.1:1"}),
    ("memplane_embedding", {"MEMPLANE_EMBEDDING__UPSTREAMS": f'[{{"api_key": "{MARK}"}}]'}),
    ("memplane_maintenance worker", {"MEMPLANE_REDIS__BROKER_URL": f"nothing://:{MARK}-pw@x"}),
)


def test_a_start_that_fails_says_which_setting_and_not_what_is_in_it() -> None:
    with ThreadPoolExecutor(len(WRONG)) as starting:
        ends = list(starting.map(start, *zip(*WRONG, strict=True)))
    for (module, wrong), (code, said) in zip(WRONG, ends, strict=True):
        [setting] = wrong
        assert code == 78, (module, said)
        assert any(part.lower() in said.lower() for part in (setting, setting.split("__")[0][len("MEMPLANE_") :])), said
        assert MARK not in said, said


def start(module: str, wrong: Mapping[str, str]) -> tuple[int, str]:
    """Exit code and words of a service."""
    process = subprocess.Popen(
        [sys.executable, "-m", *module.split()],
        env={"PATH": "", **SETTINGS, "MEMPLANE_SERVER__PORT": str(reserved_port()), **wrong},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        said, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    return process.returncode, said
