"""Serves the gateway: `python -m memplane_gateway`."""

from memplane_core.web.server import serve
from memplane_gateway.settings import GatewaySettings

serve("memplane_gateway.app:create_app", GatewaySettings.load())
