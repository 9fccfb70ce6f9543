"""`memplane doctor`: every part looked at, and what to do next."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec
from rich.console import Console
from rich.table import Table

from memplane_core.contracts.system import SystemView
from memplane_core.embedded.probes import http_ok, tcp_open
from memplane_standalone.admin import AdminApi, ApiError
from memplane_standalone.cli_admin import Target, run, show_json
from memplane_standalone.doctor import Diagnosis, diagnose, no_answer

_HERE: Final = Target()
_SERVICES: Final = ("retrieval", "embedding", "worker", "beat")
_STORES: Final = {"postgres": "postgres", "broker": "valkey", "index": "milvus"}
"""Parts that are stores, by the names of their ports."""


def doctor(*, target: Target = _HERE) -> int:
    """Look at every part, say what is wrong with it, and what to do next. Ends with 1 where somebody has to act."""

    async def ask(admin: AdminApi) -> SystemView:
        return await admin.get("/admin/v1/system", SystemView)

    try:
        diagnosis = diagnose(run(target, ask))
    except ApiError as error:
        if error.status or (target.url and not target.home.is_dir()):
            raise
        diagnosis = no_answer(str(error), parts=_local(target.home))
    if target.json:
        show_json([diagnosis])
    else:
        _show(diagnosis, Console(highlight=False))
    return 0 if diagnosis.healthy else 1


def _local(home: Path) -> Mapping[str, bool]:
    """Of the parts of a home, whether they answer; nothing where there is none."""
    try:
        ports = msgspec.json.decode((home.expanduser() / "ports.json").read_bytes(), type=dict[str, int])
    except (OSError, msgspec.MsgspecError):
        return {}
    found = {name: http_ok(f"http://127.0.0.1:{ports[name]}/readyz") for name in _SERVICES if name in ports}
    return found | {name: tcp_open(ports[port]) for name, port in _STORES.items() if port in ports}


def _show(diagnosis: Diagnosis, console: Console) -> None:
    system = diagnosis.system
    if system is not None:
        table = Table("part", "state", "as seen by", box=None, pad_edge=False)
        for part in system.parts:
            seen = ", ".join(f"{name}: {state}" for name, state in part.seen_by.items() if name != part.name)
            table.add_row(part.name, part.status, seen)
        console.print(table)
        waiting = ", ".join(f"{queue.name} {queue.waiting}" for queue in system.queues) or "unknown"
        lag = "unknown" if system.index is None else f"{system.index.lag_s:.0f} s behind"
        console.print(f"\nworkers {len(system.workers)}; queues: {waiting}; index {lag}; version {system.version}")
    for finding in diagnosis.findings:
        console.print(f"\n{finding.severity}: {finding.what}\n  {finding.todo}\n  {finding.page}", soft_wrap=True)
    if not diagnosis.findings:
        console.print("\nAll is well.")
