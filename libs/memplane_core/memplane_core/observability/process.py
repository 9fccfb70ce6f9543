"""What this process is called in its logs, metrics and traces."""


class _Process:
    name = "memplane"


def name_process(service: str) -> None:
    """Call this process `service` from now on."""
    _Process.name = service


def process_name() -> str:
    """What it is called."""
    return _Process.name
