"""Where a request comes from."""

import ipaddress
from collections.abc import Sequence

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def client_address(peer: str | None, forwarded: Sequence[str], *, proxies: Sequence[Network]) -> str | None:
    """The address of whoever sent a request, as far as it can be believed.

    Each proxy adds the address that it was called from at the right end of `X-Forwarded-For`; what stands further left
    than the last one that we know to be a proxy of ours, anybody may have written.

    Args:
        peer: Address at the other end of the connection; None where it is not known.
        forwarded: Values of `X-Forwarded-For`, in their order.
        proxies: Networks of proxies that are believed.
    """
    believed = _parsed(peer)
    if believed is None:
        return None
    hops = [hop for value in forwarded for hop in value.split(",")]
    while hops and any(believed in network for network in proxies):
        before = _parsed(hops.pop())
        if before is None:
            break
        believed = before
    return str(believed)


def _parsed(text: str | None) -> _Address | None:
    """An address, without the port or the brackets that some proxies write."""
    text = (text or "").strip()
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address
