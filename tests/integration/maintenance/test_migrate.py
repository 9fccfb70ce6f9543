"""The migration as a program: what it says and leaves where it cannot be carried out."""

import os
import subprocess
import sys

import pytest

from memplane_core.storage.bootstrap import APP_ROLE
from memplane_core.testing.postgres import PostgresServer


def migrate(owner_url: str, **more: str) -> tuple[int, str]:
    env = {**os.environ, "MEMPLANE_POSTGRES__OWNER_URL": owner_url, **more}
    command = [sys.executable, "-m", "memplane_maintenance", "migrate"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=120)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def owner_url(postgres: PostgresServer) -> str:
    return postgres.owner_url(postgres.create_database())


def test_a_role_that_is_not_there_is_named_and_the_next_run_migrates_and_the_one_after_finds_nothing_to_do(
    owner_url: str,
) -> None:
    code, said = migrate(owner_url, MEMPLANE_POSTGRES__APP_ROLE="nobody_of_that_name")

    assert code == 1
    assert "nobody_of_that_name" in said
    assert "nothing was changed" in said
    assert [migrate(owner_url, MEMPLANE_POSTGRES__APP_ROLE=APP_ROLE)[0] for _ in (1, 2)] == [0, 0]


def test_a_wrong_password_is_told_without_quoting_it(owner_url: str) -> None:
    code, said = migrate(owner_url.replace("memplane_owner:", "memplane_owner:wrong"))

    assert code == 1
    assert "refuses the owner's user or password" in said
    assert "Traceback" not in said
    assert "wrong" not in said


def test_without_an_address_the_variable_is_named() -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("MEMPLANE_")}
    command = [sys.executable, "-m", "memplane_maintenance", "migrate"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=60)

    assert done.returncode == 78
    assert "MEMPLANE_POSTGRES" in done.stderr
