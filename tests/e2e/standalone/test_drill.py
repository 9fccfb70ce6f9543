"""An installation that is lost and restored from its backup, and its data by file from one to another."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from tests.e2e.conftest import Platform


def memplane(*words: str, stdin: bytes | None = None) -> "subprocess.CompletedProcess[bytes]":
    command = [sys.executable, "-m", "memplane_standalone", *words]
    return subprocess.run(command, input=stdin, capture_output=True, timeout=240, check=False)


@pytest.mark.timeout(300)
def test_what_is_lost_comes_back_from_its_backup_and_the_index_fills_by_itself(tmp_path: Path) -> None:
    # Each step compares what it finds with what there was: counts, digests of exports, answers of searches.
    with tempfile.TemporaryDirectory() as folder:  # not below a folder that is closed to Postgres's user
        done = memplane("drill", "--memories", "40", "--folder", folder)
        assert done.returncode == 0, done.stderr.decode() + done.stdout.decode()
        assert done.stdout.decode().splitlines()[-1] == "the drill went well"
        assert list(Path(folder).iterdir()) == []


class TestTheCommandLine:
    def test_an_export_goes_to_a_file_or_a_pipe_and_is_taken_back(self, platform: Platform, tmp_path: Path) -> None:
        with platform.client() as client:
            for n in range(3):
                body = {"content": f"to be exported {n}", "user_id": "exported"}
                assert client.post("/v1/memories", json=body).status_code in (201, 202)
        home = ("--home", str(platform.home))
        piped = memplane("export", "--user-id", "exported", *home)
        assert piped.returncode == 0, piped.stderr
        assert b"exported 3 memories and 3 entries of history" in piped.stderr
        file = tmp_path / "export.ndjson"
        written = memplane("export", "--user-id", "exported", "--to", str(file), *home)
        assert written.returncode == 0, written.stderr
        assert (written.stdout, file.stat().st_mode & 0o777) == (b"", 0o600)
        assert file.read_bytes().splitlines()[1:-1] == piped.stdout.splitlines()[1:-1]
        for words, stdin in (((str(file),), None), ((), piped.stdout), ((str(file), "--dry-run"), None)):
            taken = memplane("import", *words, *home, stdin=stdin)
            assert taken.returncode == 0, taken.stderr
            assert json.loads(taken.stdout)["counts"]["unchanged"] == 3

    def test_what_stops_an_import_is_said_with_what_is_stored(self, platform: Platform, tmp_path: Path) -> None:
        home = ("--home", str(platform.home))
        whole = memplane("export", "--user-id", "exported", *home).stdout
        file = tmp_path / "cut.ndjson"
        file.write_bytes(whole[: whole.rindex(b"\n", 0, -1) + 1])
        stopped = memplane("import", str(file), *home)
        assert (stopped.returncode, stopped.stdout) == (1, b"")
        assert b"the body was cut off" in stopped.stderr
        assert b"3 unchanged" in stopped.stderr

    def test_a_backup_of_a_running_installation_is_refused_a_home_that_is_in_use(
        self, platform: Platform, tmp_path: Path
    ) -> None:
        file = tmp_path / "memplane.dump"
        done = memplane("backup", "--to", str(file), "--home", str(platform.home))
        assert done.returncode == 0, done.stderr
        assert file.stat().st_mode & 0o777 == 0o600
        assert b"secret" not in done.stderr
        again = memplane("restore", "--from", str(file), "--home", str(platform.home))
        assert (again.returncode, again.stderr.startswith(b"memplane: Memplane is already running")) == (1, True)
        none = memplane("restore", "--from", str(tmp_path / "nothing"), "--home", str(tmp_path / "new"))
        assert (none.returncode, b"there is no backup" in none.stderr) == (1, True)
        home, own = tmp_path / "another", b"of another installation"
        home.mkdir()
        (home / "credentials.json").write_bytes(own)
        words = ("restore", "--from", str(file), "--home", str(home), "--secrets", str(platform.home / "secrets.json"))
        there = memplane(*words)
        assert (there.returncode, b"credentials.json is there already" in there.stderr) == (1, True), there.stderr
        assert not (home / "secrets.json").exists()
        away = memplane(*words, "--replace-secrets", "--database-url", "postgresql://nobody@127.0.0.1:1/nothing")
        assert (away.returncode, b"cannot be restored" in away.stderr) == (1, True), away.stderr
        assert not (home / "secrets.json").exists()
        assert (home / "credentials.json").read_bytes() == own
        file.write_bytes(b"not a dump")
        broken = memplane("restore", "--from", str(file), "--home", str(tmp_path / "new"))
        assert (broken.returncode, b"pg_restore failed" in broken.stderr) == (1, True)
        assert not (tmp_path / "new").exists()
