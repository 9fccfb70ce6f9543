"""Prometheus and its promtool from Debian's package, unpacked into a folder: for rules and queries on the real thing.

python -m memplane_core.testing.prometheus prepare
"""

import fcntl
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import httpx2

from memplane_core.embedded.probes import http_ok
from memplane_core.embedded.processes import Child, Launch
from memplane_core.testing.ports import reserved_port
from memplane_core.testing.started import Started

_ROOT = Path(__file__).resolve().parents[4]
_HOME = _ROOT / ".venvs" / "prometheus"
_PROGRAMS: Final = ("prometheus", "promtool")


def prepare() -> Mapping[str, Path]:
    """Unpack the package if that was not done before; returns where `prometheus` and `promtool` are.

    Programs of these names that are on the PATH are taken as they are. Nothing is installed on the machine, and nobody
    has to be root. Where apt knows of no package, its lists are read into a folder of ours.

    Raises:
        RuntimeError: There is no such package to be had, with what apt says.
    """
    found = [shutil.which(name) for name in _PROGRAMS]
    if found[0] and found[1]:
        return {name: Path(path) for name, path in zip(_PROGRAMS, found, strict=True) if path}
    folder = _HOME / "usr" / "bin"
    _HOME.parent.mkdir(parents=True, exist_ok=True)
    with (_HOME.parent / ".prometheus.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not all((folder / name).exists() for name in _PROGRAMS):
            _unpack()
    return {name: folder / name for name in _PROGRAMS}


def _unpack() -> None:
    with tempfile.TemporaryDirectory(prefix="memplane-prometheus-") as name:
        work = Path(name)
        work.chmod(0o755)
        lists, cache = work / "lists", work / "cache"
        (lists / "partial").mkdir(parents=True)
        (cache / "archives" / "partial").mkdir(parents=True)
        ours = ["-o", f"Dir::State::Lists={lists}", "-o", f"Dir::Cache={cache}"]
        said = _run(["apt-get", "download", "prometheus"], work)
        if said:
            # As a machine that has just been made, or cleaned: without lists.
            _run(["apt-get", "-q", "update", *ours], work)
            said = _run(["apt-get", "download", "prometheus", *ours], work)
        packages = list(work.glob("prometheus_*.deb"))
        if not packages:
            raise RuntimeError(f"apt has no package prometheus: {said}")
        partial = work / "unpacked"
        subprocess.run(["dpkg", "-x", str(packages[0]), str(partial)], check=True)  # noqa: S603, S607
        for program in _PROGRAMS:
            target = _HOME / "usr" / "bin" / program
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(partial / "usr" / "bin" / program, target)


def _run(command: list[str], cwd: Path) -> str:
    """What is wrong; `""` where it went well."""
    try:
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return "" if done.returncode == 0 else (done.stderr or done.stdout)[-1000:]


class Prometheus(Started):
    """A server that scrapes what it is told, on loopback, and evaluates rules.

    Args:
        targets: Names of jobs and the ports of their metrics.
        rules: Rule files.
        every_s: Seconds between two scrapes, and between two looks at the rules.
    """

    def __init__(self, targets: Mapping[str, int], *, rules: Sequence[Path] = (), every_s: float = 1.0) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="memplane-prometheus-"))
        self.port = reserved_port()
        every = f"{int(every_s * 1000)}ms"
        config = {
            "global": {"scrape_interval": every, "scrape_timeout": every, "evaluation_interval": every},
            "rule_files": [str(rule) for rule in rules],
            "scrape_configs": [
                {"job_name": name, "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}
                for name, port in targets.items()
            ],
        }
        (self._folder / "config.yaml").write_text(json.dumps(config))  # JSON is YAML
        argv = [
            str(prepare()["prometheus"]),
            f"--config.file={self._folder / 'config.yaml'}",
            f"--storage.tsdb.path={self._folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{self.port}",
            "--log.level=warn",
        ]
        self._child = Child(Launch(argv=argv, env={}, log=self._folder / "log"))

    @property
    def url(self) -> str:
        """Its base URL."""
        return f"http://127.0.0.1:{self.port}"

    def start(self, *, timeout_s: float = 30.0) -> None:
        """Start it and wait until it is ready."""
        self._child.start()
        self._child.wait_ready(lambda: http_ok(f"{self.url}/-/ready"), timeout_s=timeout_s)

    def stop(self) -> None:
        """End it."""
        self._child.stop()

    def dispose(self) -> None:
        """End it and remove its folder."""
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The series that an expression gives now, each with `metric` and `value`. Raises ValueError for a bad one."""
        answer = self._get("query", query=expression)
        if answer["status"] != "success":
            raise ValueError(f"{expression}: {answer.get('error')}")
        data = answer["data"]
        return data["result"] if data["resultType"] == "vector" else [data]

    def metadata(self) -> set[str]:
        """Names of all metrics that were ever scraped."""
        return set(self._get("label/__name__/values")["data"])

    def described(self) -> set[str]:
        """Names of all metrics that a process describes, also where it has no series of them yet."""
        return set(self._get("metadata")["data"])

    def rules(self) -> list[dict[str, Any]]:
        """All rules with their health and, of alerts, their state."""
        return [rule for group in self._get("rules")["data"]["groups"] for rule in group["rules"]]

    def _get(self, path: str, **query: str) -> dict[str, Any]:
        return httpx2.get(f"{self.url}/api/v1/{path}", params=query, trust_env=False, timeout=10).json()

    def wait(self, expression: str, *, true: bool = True, within_s: float) -> float:
        """Wait until an expression gives anything, or nothing where not `true`; returns the seconds it took.

        Raises:
            TimeoutError: It never did.
        """
        began = time.monotonic()
        while bool(self.query(expression)) is not true:
            if time.monotonic() - began > within_s:
                raise TimeoutError(f"after {within_s:g} s: {expression}")
            time.sleep(0.2)
        return time.monotonic() - began


def main(arguments: list[str]) -> int:
    """`prepare` is the only command. Returns the exit code."""
    if arguments != ["prepare"]:
        sys.stderr.write("usage: python -m memplane_core.testing.prometheus prepare\n")
        return 2
    prepare()
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
