"""Where secrets are read from, and how several of them are told."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from memplane_core.settings import TrustSettings
from memplane_gateway.settings import DoorSettings, GatewaySettings

OLD, NEW, ADMIN, OPS = ("old " * 10, "new " * 10, "admin " * 10, "ops " * 10)


class TestSeveralSecrets:
    def test_a_single_one_is_a_list_of_one(self) -> None:
        assert TrustSettings.model_validate({"internal_secret": OLD}).secrets == (OLD,)
        assert DoorSettings.model_validate({"key_pepper": OLD, "admin_key": ADMIN}).peppers == (OLD,)

    def test_a_list_comes_before_the_single_one(self) -> None:
        assert TrustSettings.model_validate({"internal_secrets": [NEW], "internal_secret": OLD}).secrets == (NEW, OLD)
        door = DoorSettings.model_validate({"key_peppers": [NEW, OLD], "key_pepper": OLD, "admin_key": ADMIN})
        assert door.peppers == (NEW, OLD)

    @pytest.mark.parametrize("given", [{}, {"internal_secrets": []}, {"internal_secrets": [NEW, "short"]}])
    def test_none_or_a_short_one_stops_the_service(self, given: dict[str, object]) -> None:
        with pytest.raises(ValidationError):
            TrustSettings.model_validate(given)

    def test_ops_and_admin_cannot_share_a_key(self) -> None:
        with pytest.raises(ValidationError, match="ops_key"):
            DoorSettings.model_validate({"key_pepper": OLD, "admin_key": ADMIN, "ops_key": ADMIN})


class TestSecretsFolder:
    @pytest.fixture
    def folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """As Kubernetes mounts a secret: links into a folder that is replaced as a whole."""
        kept = tmp_path / "..2026_11_30"
        kept.mkdir()
        (tmp_path / "..data").symlink_to(kept.name)
        files = {
            "MEMPLANE_GATEWAY__ADMIN_KEY": ADMIN,
            "memplane_gateway__ops_key": OPS,
            "MEMPLANE_GATEWAY__KEY_PEPPERS": f'["{NEW}", "{OLD}"]',
            "MEMPLANE_TRUST__INTERNAL_SECRET": OLD,
        }
        for name, text in files.items():
            (kept / name).write_text(text)
            (tmp_path / name).symlink_to(f"..data/{name}")
        monkeypatch.setenv("MEMPLANE_SECRETS_DIR", str(tmp_path))
        monkeypatch.setenv("MEMPLANE_POSTGRES__URL", "postgresql://somewhere/memplane")
        monkeypatch.setenv("MEMPLANE_REDIS__CACHE_URL", "redis://somewhere")
        return tmp_path

    @pytest.mark.usefixtures("folder")
    def test_files_are_named_as_the_variables_are(self) -> None:
        settings = GatewaySettings.load()
        assert settings.gateway.admin_key.get_secret_value().strip() == ADMIN.strip()
        assert settings.gateway.ops_key is not None
        assert settings.gateway.ops_key.get_secret_value().strip() == OPS.strip()
        assert [pepper.strip() for pepper in settings.gateway.peppers] == [NEW.strip(), OLD.strip()]
        assert [secret.strip() for secret in settings.trust.secrets] == [OLD.strip()]

    @pytest.mark.usefixtures("folder")
    def test_a_variable_counts_before_a_file(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MEMPLANE_GATEWAY__ADMIN_KEY", "from the environment, and long enough")
        assert GatewaySettings.load().gateway.admin_key.get_secret_value() == "from the environment, and long enough"
