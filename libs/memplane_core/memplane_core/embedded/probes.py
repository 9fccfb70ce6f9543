"""Whether a part answers yet. All of them say False rather than raise."""

import http.client
import socket
from urllib.parse import urlsplit


def tcp_open(port: int, *, host: str = "127.0.0.1", timeout_s: float = 1.0) -> bool:
    """Whether something accepts connections there."""
    try:
        with socket.create_connection((host, port), timeout_s):
            return True
    except OSError:
        return False


def http_ok(url: str, *, timeout_s: float = 3.0) -> bool:
    """Whether a GET of the plain HTTP `url` answers 200."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "127.0.0.1", parts.port, timeout=timeout_s)
    try:
        connection.request("GET", parts.path or "/")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def redis_answers(port: int, password: str, *, timeout_s: float = 1.0) -> bool:
    """Whether a Redis or Valkey on this port takes the password and has loaded its data."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout_s) as connection:
            connection.sendall(f"AUTH {password}\r\nPING\r\n".encode())
            connection.settimeout(timeout_s)
            answer = b""
            while answer.count(b"\r\n") < 2 and (part := connection.recv(256)):
                answer += part
    except OSError:
        return False
    return answer == b"+OK\r\n+PONG\r\n"
