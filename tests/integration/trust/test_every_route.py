"""No route behind the gateway answers without a token of ours; read from the services' own route tables."""

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import jwt
import pytest
from litestar import Litestar
from litestar.routes import HTTPRoute

from memplane_core.domain.tenancy import SCOPES, Principal, TenantId
from memplane_core.security.internal import InternalTokens
from memplane_core.security.keys import Keyring
from memplane_core.settings import default_models_dir
from memplane_embedding.app import build as build_embedding
from memplane_embedding.models.build import build_models
from memplane_embedding.settings import EmbeddingSettings
from memplane_retrieval.app import build as build_retrieval
from memplane_retrieval.app import open_real_ports
from memplane_retrieval.settings import RetrievalSettings

pytestmark = pytest.mark.anyio

SECRET = "internal secret of the tests, long enough"
PUBLIC = {"/healthz", "/readyz"}
NOWHERE = {"broker_url": "redis://127.0.0.1:1/0", "cache_url": "redis://127.0.0.1:1/0"}


def embedding() -> Litestar:
    build_models([], default_models_dir(), lock=Path("models/requirements.txt"), report=lambda _: None)
    return build_embedding(EmbeddingSettings.model_validate({"trust": {"internal_secret": SECRET}}))


def retrieval() -> Litestar:
    settings = RetrievalSettings.model_validate(
        {
            "postgres": {"url": "postgresql://nobody@127.0.0.1:1/nothing"},
            "redis": NOWHERE,
            "milvus": {"uri": "http://127.0.0.1:1"},
            "trust": {"internal_secret": SECRET},
        }
    )
    return build_retrieval(settings, open_ports=open_real_ports)


def guarded(app: Litestar) -> Iterator[tuple[str, str]]:
    """Method and path of each route that is not about health."""
    for route in app.routes:
        if isinstance(route, HTTPRoute) and route.path not in PUBLIC:
            path = re.sub(r"\{[^}]*\}", str(uuid4()), route.path)
            yield from ((method, path) for method in sorted(route.methods - {"OPTIONS"}))


def tokens() -> dict[str, str]:
    """What is not a token of ours, by what is wrong with it."""
    who = Principal(tenant=TenantId(uuid4()), scopes=SCOPES, key_id="k", request_id="r")
    good = InternalTokens(SECRET).sign(who)
    claims = jwt.decode(good, SECRET, algorithms=["HS256"])
    late = jwt.encode(
        claims | {"exp": int(time.time()) - 60}, SECRET, algorithm="HS256", headers=jwt.get_unverified_header(good)
    )
    return {
        "none": "",
        "empty": "Bearer ",
        "garbage": "Bearer a.b.c",
        "of another installation": f"Bearer {InternalTokens('another secret that is long enough').sign(who)}",
        "expired": f"Bearer {late}",
        "altered": f"Bearer {good[:-2]}",
        "an API key": f"Bearer {Keyring(['p' * 32]).issue().text}",
        "another scheme": f"Basic {good}",
    }


@pytest.mark.parametrize("make", [embedding, retrieval])
async def test_asks_for_a_token(make: Any) -> None:
    app = make()
    routes = list(guarded(app))
    assert len(routes) >= 4
    transport = httpx2.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, base_url="http://service") as client:
        for method, path in routes:
            for wrong, header in tokens().items():
                headers = {"Authorization": header} if header else {}
                answer = await client.request(method, path, headers=headers, content=b"{}")
                assert answer.status_code == 401, (method, path, wrong)
        good = InternalTokens(SECRET).sign(
            Principal(tenant=TenantId(uuid4()), scopes=frozenset(), key_id="k", request_id="r")
        )
        for method, path in routes:  # with a token of ours something else is wrong
            headers = {"Authorization": f"Bearer {good}"}
            answer = await client.request(method, path, headers=headers, content=b"{}")
            assert answer.status_code != 401, (method, path, answer.text)
