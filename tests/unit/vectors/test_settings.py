"""What is wrong with the settings of Milvus is said in a sentence, before anything is started."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from memplane_core.domain.indexing import complete_index_params
from memplane_core.settings import MilvusSettings, Settings

URI = "http://milvus:19530"
TLS = "https://milvus:19530"


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"uri": "milvus:19530"}, "named like http://host:19530"),
        ({"uri": "./memplane.db"}, "Milvus Lite cannot be shared"),
        ({"uri": "http://root:secret@milvus:19530"}, "belong into MEMPLANE_MILVUS__TOKEN"),
        ({"index_type": "HNWS"}, "'HNSW', 'IVF_FLAT' or 'AUTOINDEX'"),
        ({"index_params": {"m": 16}}, "HNSW has no build parameter 'm'; it has M and efConstruction"),
        ({"index_params": {"M": 2}}, r"M of HNSW is 2, not within 4\.\.64"),
        ({"index_params": {"efConstruction": 513}}, r"not within 8\.\.512"),
        ({"index_type": "IVF_FLAT", "index_params": {"M": 16}}, "IVF_FLAT has no build parameter 'M'; it has nlist"),
        ({"index_type": "AUTOINDEX", "index_params": {"M": 16}}, "'M'; it has none"),
        ({"search_ef": 63}, "greater than or equal to 64"),
        ({"search_nprobe": 65_537}, "less than or equal to 65536"),
        ({"ef": 100}, "not permitted"),
        ({"server_pem_path": "/there/is/none"}, "the uri does not begin with https"),
        ({"server_name": "milvus"}, "the uri does not begin with https"),
        ({"uri": TLS, "server_pem_path": "/there/is/none"}, "'/there/is/none' cannot be read"),
        (
            {"uri": TLS, "ca_pem_path": "/there/is/none"},
            "takes all of ca_pem_path, client_pem_path and client_key_path",
        ),
    ],
)
def test_what_is_wrong_is_refused_in_a_sentence(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValidationError, match=sentence):
        MilvusSettings.model_validate({"uri": URI, **given})


def test_parameters_left_out_have_their_defaults() -> None:
    assert MilvusSettings(uri=URI).index_params == complete_index_params("HNSW", {})
    assert MilvusSettings(uri=URI, index_params={"M": 8}).index_params["efConstruction"] > 8
    assert MilvusSettings(uri=URI, index_type="IVF_FLAT", index_params={"nlist": 7}).index_params == {"nlist": 7}
    assert MilvusSettings(uri=URI, index_type="AUTOINDEX").index_params == {}


def test_settings_come_from_the_environment_and_a_wrong_one_stops_the_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    class Service(Settings):
        milvus: MilvusSettings

    pem = tmp_path / "ca.pem"
    pem.write_text("certificate")
    for name, value in {
        "URI": TLS,
        "TOKEN": "root:secret",
        "DATABASE": "memories",
        "SERVER_PEM_PATH": str(pem),
        "INDEX_TYPE": "IVF_FLAT",
        "INDEX_PARAMS": '{"nlist": 256}',
        "SEARCH_NPROBE": "64",
    }.items():
        monkeypatch.setenv(f"MEMPLANE_MILVUS__{name}", value)
    milvus = Service.load().milvus
    assert (milvus.token.get_secret_value(), milvus.database) == ("root:secret", "memories")
    assert (milvus.index_params, milvus.search_nprobe) == ({"nlist": 256}, 64)
    assert "secret" not in repr(milvus)

    monkeypatch.setenv("MEMPLANE_MILVUS__INDEX_PARAMS", '{"lists": 256}')
    with pytest.raises(SystemExit) as stopped:
        Service.load()
    assert stopped.value.code == 78
    assert "IVF_FLAT has no build parameter 'lists'; it has nlist" in capsys.readouterr().err
