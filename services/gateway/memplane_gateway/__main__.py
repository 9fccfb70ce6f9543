"""`python -m memplane_gateway` serves the gateway; with `bootstrap` or `key` it does that and ends."""

import sys

from memplane_gateway.settings import GatewaySettings

_USAGE = "usage: python -m memplane_gateway [bootstrap|key]\n"


def main(arguments: list[str]) -> int:
    """Serve, make first tenants, or print a new key; returns the exit code: 2 for other arguments."""
    match arguments:
        case []:
            from memplane_core.web.server import serve  # noqa: PLC0415 - a wrong setting is told at once

            serve("memplane_gateway.app:create_app", GatewaySettings.load())
        case ["bootstrap"]:
            from memplane_gateway.bootstrap import BootstrapSettings, run_bootstrap  # noqa: PLC0415 - not to serve

            return run_bootstrap(BootstrapSettings.load())
        case ["key"]:
            from memplane_gateway.bootstrap import print_key  # noqa: PLC0415 - the same

            return print_key()
        case _:
            sys.stderr.write(_USAGE)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
