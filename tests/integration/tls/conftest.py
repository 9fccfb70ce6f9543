"""A Postgres and a Valkey that speak TLS alone: the servers of the wheels do not, so each stands behind a proxy."""

import asyncio
import ssl
import struct
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec
import pytest

from memplane_core.testing.valkey import ValkeyServer

# Signed by itself, for localhost and 127.0.0.1, until 2126. Nothing but these tests trusts it.
CERTIFICATE: Final = """\
-----BEGIN CERTIFICATE-----
MIIBtDCCAVugAwIBAgIUPwE5ksHt2w/6hBvIFu0Meui06HMwCgYIKoZIzj0EAwIw
GTEXMBUGA1UEAwwObWVtcGxhbmUgdGVzdHMwIBcNMjYxMTMwMDA1NjA5WhgPMjEy
NjExMDYwMDU2MDlaMBkxFzAVBgNVBAMMDm1lbXBsYW5lIHRlc3RzMFkwEwYHKoZI
zj0CAQYIKoZIzj0DAQcDQgAEMepyVJ6RS0mF1I/C60KgzGuVlCyNOhzWeWVP/mpV
3AIcMqZonSaCAKfPKxvNSYbpBGQUEAC/l5/JexIsgrcSiKN/MH0wHQYDVR0OBBYE
FAZeX3V26ZhJICy/F2SJ4EM5aIpBMB8GA1UdIwQYMBaAFAZeX3V26ZhJICy/F2SJ
4EM5aIpBMBoGA1UdEQQTMBGCCWxvY2FsaG9zdIcEfwAAATAPBgNVHRMBAf8EBTAD
AQH/MA4GA1UdDwEB/wQEAwIChDAKBggqhkjOPQQDAgNHADBEAiBYWWv82vjYyCds
SR+0SKuqIe+3ydstsNtcE5Z148TDCwIgR7ta0vAHCKR7lnP3gMxiJYMpfL98MAZN
K6la8QvfRXA=
-----END CERTIFICATE-----
"""
KEY: Final = """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgmUcVsbCBmaSnsI/A
5EB3i4mw7CETQ7e6m+Dv17KAWeehRANCAAQx6nJUnpFLSYXUj8LrQqDMa5WULI06
HNZ5ZU/+alXcAhwypmidJoIAp88rG81JhukEZBQQAL+Xn8l7EiyCtxKI
-----END PRIVATE KEY-----
"""
_SSL_REQUEST: Final = struct.pack(">II", 8, 80877103)


class Pems(msgspec.Struct, frozen=True):
    """Files of one certificate, which is its own authority."""

    certificate: str
    key: str


@pytest.fixture(scope="session")
def pems(tmp_path_factory: pytest.TempPathFactory) -> Pems:
    folder: Path = tmp_path_factory.mktemp("pems")
    (folder / "certificate.pem").write_text(CERTIFICATE)
    (folder / "key.pem").write_text(KEY)
    return Pems(str(folder / "certificate.pem"), str(folder / "key.pem"))


@pytest.fixture(scope="session")
def valkey() -> Iterator[ValkeyServer]:
    with ValkeyServer() as server:
        yield server


@asynccontextmanager
async def tls_before(port: int, pems: Pems, *, postgres: bool, mutual: bool = False) -> AsyncGenerator[int]:
    """A port on every loopback address that speaks TLS for the server at `port`.

    Args:
        port: Of a server that does not.
        pems: What it shows, and with `mutual` asks callers for.
        postgres: Begins as Postgres does, which asks for TLS first.
        mutual: Callers have to show a certificate.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pems.certificate, pems.key)
    if mutual:
        context.load_verify_locations(pems.certificate)
        context.verify_mode = ssl.CERT_REQUIRED

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        transport = writer.transport
        try:
            with suppress(OSError, asyncio.IncompleteReadError):
                if postgres:
                    if await reader.readexactly(8) != _SSL_REQUEST:
                        return
                    writer.write(b"S")
                await writer.start_tls(context)
                inner_reader, inner = await asyncio.open_connection("127.0.0.1", port)
                try:
                    await asyncio.gather(_copy(reader, inner), _copy(inner_reader, writer))
                finally:
                    inner.close()
        finally:
            writer.close()
            transport.abort()  # a handshake that failed leaves it open

    server = await asyncio.start_server(serve, "0.0.0.0", 0)
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        server.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    finally:
        writer.close()
