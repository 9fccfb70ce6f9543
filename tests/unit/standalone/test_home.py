"""A home belongs to one platform at a time and keeps its secrets."""

import socket
import stat
from pathlib import Path

import pytest

from memplane_standalone.home import Credentials, Home, HomeError, read_credentials

CREDENTIALS = Credentials(
    url="http://127.0.0.1:8080", tenant="t", api_key="k", admin_key="a", console_url="http://127.0.0.1:8080/console"
)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


class TestLock:
    def test_a_second_start_on_the_same_home_is_refused_with_one_sentence(self, tmp_path: Path) -> None:
        home = Home(tmp_path / "home")
        with pytest.raises(HomeError, match=r"^Memplane is already running on \S+home: stop it first, .*--home\.$"):
            Home(tmp_path / "home")
        home.close()
        Home(tmp_path / "home").close()

    def test_a_path_that_is_a_file_is_refused_by_name(self, tmp_path: Path) -> None:
        (tmp_path / "home").touch()
        with pytest.raises(HomeError, match="home cannot be used as home"):
            Home(tmp_path / "home")


class TestSecrets:
    def test_they_are_made_once_and_only_their_owner_reads_them(self, tmp_path: Path) -> None:
        home = Home(tmp_path)
        first = home.secrets()
        assert home.secrets() == first
        assert mode(tmp_path / "secrets.json") == 0o600
        assert len({first.key_pepper, first.internal_secret, first.admin_key, first.app_password}) == 4
        assert min(len(first.key_pepper), len(first.internal_secret), len(first.admin_key)) >= 32
        home.close()

    def test_data_without_its_secrets_is_not_given_new_ones(self, tmp_path: Path) -> None:
        (tmp_path / "postgres").mkdir()
        home = Home(tmp_path)
        with pytest.raises(HomeError, match=r"secrets\.json is missing"):
            home.secrets()
        assert not (tmp_path / "secrets.json").exists()
        home.close()


class TestCredentials:
    def test_they_are_read_back_and_only_their_owner_reads_them(self, tmp_path: Path) -> None:
        home = Home(tmp_path)
        assert home.credentials() is None
        home.save_credentials(CREDENTIALS)
        assert read_credentials(tmp_path) == CREDENTIALS
        assert mode(tmp_path / "credentials.json") == 0o600
        assert [path.name for path in tmp_path.glob(".*")] == []
        home.close()

    def test_a_damaged_file_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "credentials.json").write_text("{")
        with pytest.raises(HomeError, match=r"credentials\.json cannot be read"):
            read_credentials(tmp_path)


class TestPorts:
    def test_they_stay_the_same_until_somebody_takes_one(self, tmp_path: Path) -> None:
        home = Home(tmp_path)
        first = home.ports(("a", "b"))
        assert home.ports(("a", "b")) == first
        with socket.socket() as taker:
            taker.bind(("127.0.0.1", first["a"]))
            taker.listen()
            second = home.ports(("a", "b"))
        assert second["b"] == first["b"]
        assert second["a"] not in first.values()
        third = home.ports(("a", "b"), besides=(second["a"],))
        assert (third["a"] != second["a"], third["b"]) == (True, second["b"])
        home.close()


def test_a_log_over_ten_megabytes_is_put_aside(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.log("small").write_bytes(b"x")
    home.log("large").write_bytes(b"x" * (10 * 1024 * 1024 + 1))
    home.rotate_logs()
    assert sorted(path.name for path in home.logs.iterdir()) == ["large.log.1", "small.log"]
    home.close()
