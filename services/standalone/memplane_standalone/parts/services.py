"""The services, run as in production: each a process of its own, told by its environment alone what it needs."""

import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from memplane_core.embedded.probes import http_ok
from memplane_core.embedded.processes import Launch
from memplane_core.storage.bootstrap import APP_ROLE
from memplane_standalone.home import Home, Secrets
from memplane_standalone.parts.part import Part
from memplane_standalone.parts.stores import marked

_NOTHING: Mapping[str, str] = {}

_GRACE_S = 15.0
"""Longer than the requests and batches under way take as a rule."""


@dataclass(frozen=True, kw_only=True)
class Wiring:
    """Where everything is.

    Attributes:
        app_url: Postgres, as the runtime role.
        owner_url: Postgres, as the role that migrates.
        broker_url: Redis or Valkey for messages.
        cache_url: The same for caches.
        milvus_uri: Milvus.
        ports: Of each service, and of its metrics as `<service>_metrics`.
        models_dir: Of the built embedding models.
        secrets: What they trust each other by.
    """

    app_url: str
    owner_url: str
    broker_url: str
    cache_url: str
    milvus_uri: str
    ports: Mapping[str, int]
    models_dir: Path
    secrets: Secrets

    def door(self) -> dict[str, str]:
        """What the gateway alone may know: with it, API keys can be made."""
        return {
            "MEMPLANE_GATEWAY__KEY_PEPPER": self.secrets.key_pepper,
            "MEMPLANE_GATEWAY__ADMIN_KEY": self.secrets.admin_key,
        }

    def environment(self) -> dict[str, str]:
        """The settings that all services share. The owner's connection string is not among them."""
        return {
            "MEMPLANE_POSTGRES__URL": self.app_url,
            "MEMPLANE_REDIS__BROKER_URL": self.broker_url,
            "MEMPLANE_REDIS__CACHE_URL": self.cache_url,
            "MEMPLANE_MILVUS__URI": self.milvus_uri,
            "MEMPLANE_TRUST__INTERNAL_SECRET": self.secrets.internal_secret,
            "MEMPLANE_ENDPOINTS__EMBEDDING_URL": f"http://127.0.0.1:{self.ports['embedding']}",
            "MEMPLANE_ENDPOINTS__RETRIEVAL_URL": f"http://127.0.0.1:{self.ports['retrieval']}",
            "MEMPLANE_MODELS_DIR": str(self.models_dir),
        }


def service_parts(home: Home, wiring: Wiring) -> list[Part]:
    """The five processes that are Memplane itself."""

    def part(name: str, *program: str, needs: tuple[str, ...], stage: int, knows: Mapping[str, str] = _NOTHING) -> Part:
        port = wiring.ports[name]
        # A server passes the request to end on to a process of its own, which would stay if the server were killed.
        # The others have none, and could wait for a broker that is gone as well.
        kin = signal.SIGTERM if len(program) == 1 else signal.SIGKILL
        launch = Launch(
            argv=[sys.executable, "-m", *program],
            env={**_environment(wiring, name), **knows},
            log=home.log(name),
            death_signal=kin,
            grace_s=_GRACE_S,
        )
        return Part(
            name=name,
            launch=marked(home, lambda: launch),
            is_ready=lambda: http_ok(f"http://127.0.0.1:{port}/readyz"),
            needs=needs,
            asked_after=("retrieval", "embedding") if name == "gateway" else (),
            stage=stage,
        )

    return [
        part("embedding", "memplane_embedding", needs=(), stage=1),
        part("retrieval", "memplane_retrieval", needs=("migrations",), stage=2),
        part("worker", "memplane_maintenance", "worker", needs=("migrations", "valkey", "milvus"), stage=2),
        part("beat", "memplane_maintenance", "beat", needs=("valkey",), stage=2),
        part("gateway", "memplane_gateway", needs=("migrations",), stage=3, knows=wiring.door()),
    ]


def migration(home: Home, wiring: Wiring) -> Launch:
    """How to bring the database to the newest schema: a program that ends."""
    launch = Launch(
        argv=[sys.executable, "-m", "memplane_standalone", "migrate"],
        env={
            **_inherited(),
            "MEMPLANE_POSTGRES__OWNER_URL": wiring.owner_url,
            "MEMPLANE_POSTGRES__APP_ROLE": APP_ROLE,
        },
        log=home.log("migrations"),
    )
    return marked(home, lambda: launch)()


def _environment(wiring: Wiring, name: str) -> dict[str, str]:
    return {
        **_inherited(),
        **wiring.environment(),
        "MEMPLANE_SERVER__HOST": "127.0.0.1",
        "MEMPLANE_SERVER__PORT": str(wiring.ports[name]),
        "MEMPLANE_SERVER__METRICS_PORT": str(wiring.ports[f"{name}_metrics"]),
        "PYTHONUNBUFFERED": "1",
    }


def _inherited() -> dict[str, str]:
    """The user's own environment: what we do not set, such as an index type or a log level, is theirs to set."""
    return dict(os.environ)
