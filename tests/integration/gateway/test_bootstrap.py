"""First tenants and their keys, made by a program from keys that somebody has handed in."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pytest
from anyio import to_thread

from memplane_core.security.keys import Keyring, parse_key

from .conftest import ADMIN, PEPPER, Gateway

pytestmark = pytest.mark.anyio


def new_key() -> str:
    return Keyring([PEPPER]).issue().text


class Program:
    """`python -m memplane_gateway bootstrap` with some tenants, beside a running gateway."""

    def __init__(self, door: Gateway, folder: Path) -> None:
        self._door = door
        self._folder = folder

    async def run(self, *wanted: tuple[str, str], **more: str) -> tuple[int, str]:
        """Names and keys; returns the exit code and all that it said."""
        tenants: list[dict[str, object]] = []
        for name, key in wanted:
            file = self._folder / uuid4().hex
            file.write_text(key + "\n", encoding="utf-8")
            tenants.append({"name": name, "key_file": str(file), "scopes": ["memories:read", "memories:write"]})
        env = {**os.environ, **self._door.environment(), "MEMPLANE_BOOTSTRAP__TENANTS": json.dumps(tenants), **more}
        command = [sys.executable, "-m", "memplane_gateway", "bootstrap"]
        done = await to_thread.run_sync(
            lambda: subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=60)
        )
        return done.returncode, done.stdout + done.stderr


@pytest.fixture
def program(door: Gateway, tmp_path: Path) -> Program:
    return Program(door, tmp_path)


async def whoami(door: Gateway, key: str) -> tuple[int, str]:
    answer = await door.client.get("/v1/whoami", headers={"Authorization": f"Bearer {key}"})
    return answer.status_code, str(answer.json().get("tenant_id") or answer.json())


async def test_tenants_and_keys_that_are_missing_are_made_once_however_often_and_by_however_many(
    door: Gateway, program: Program
) -> None:
    name, key = f"acme {uuid4().hex}", new_key()

    both = await asyncio.gather(program.run((name, key)), program.run((name, key)))
    again = await program.run((name, key))

    # Of two at once one may come a moment late, and says so; a Job tries again.
    assert 0 in {code for code, _ in both}
    assert again[0] == 0, again[1]
    page = (await door.client.get("/admin/v1/tenants?limit=1000", headers=ADMIN)).json()["results"]
    assert [tenant["name"] for tenant in page].count(name) == 1
    status, _ = await whoami(door, key)
    assert status == 200
    assert all(key not in said for _, said in (*both, again))


async def test_a_key_of_another_tenant_is_not_given_away(door: Gateway, program: Program) -> None:
    mine, theirs, key = f"mine {uuid4().hex}", f"theirs {uuid4().hex}", new_key()
    assert (await program.run((mine, key)))[0] == 0

    code, said = await program.run((theirs, key))

    assert code == 1
    assert "another tenant's" in said


async def test_what_is_no_key_is_refused_with_a_sentence_that_does_not_quote_it(program: Program) -> None:
    key = new_key()[:-1]

    code, said = await program.run((f"t {uuid4().hex}", key))

    assert code == 1
    assert "is no key" in said
    assert "Traceback" not in said
    assert key not in said


def test_a_new_key_is_printed_for_whoever_makes_the_secret() -> None:
    command = [sys.executable, "-m", "memplane_gateway", "key"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)

    assert parse_key(done.stdout.strip()) is not None
