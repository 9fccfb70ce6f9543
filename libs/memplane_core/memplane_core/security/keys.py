"""API keys: how they look, how they are made, and how one is told from a forgery.

`mp_live_` + 12 characters of public id + 43 of secret + 6 of checksum, all base62. Only an HMAC-SHA256 of a key, made
with a pepper that the database does not hold, is ever stored. The checksum is no secret: it lets a mistyped key be
refused without a look-up, and scanners of leaked credentials be sure of what they have found.
"""

import hmac
import re
import secrets
import string
import zlib
from collections.abc import Sequence
from typing import Final

import msgspec

PREFIX: Final = "mp_live_"
ID_LENGTH: Final = 12
SECRET_LENGTH: Final = 43
CHECK_LENGTH: Final = 6
KEY_LENGTH: Final = len(PREFIX) + ID_LENGTH + SECRET_LENGTH + CHECK_LENGTH

_ALPHABET: Final = string.digits + string.ascii_uppercase + string.ascii_lowercase
_KEY: Final = re.compile(
    rf"{PREFIX}(?P<id>[0-9A-Za-z]{{{ID_LENGTH}}})[0-9A-Za-z]{{{SECRET_LENGTH}}}(?P<check>[0-9A-Za-z]{{{CHECK_LENGTH}}})"
)
_DIGEST_BYTES: Final = 32
_DOMAIN: Final = b"memplane api key\x00"
_MARKS: Final = b"memplane mark\x00"


class IssuedKey(msgspec.Struct, frozen=True):
    """A new key. `text` is shown to its owner once; `id` and `digest` are what is stored."""

    id: str
    text: str
    digest: bytes


class PresentedKey(msgspec.Struct, frozen=True):
    """A well-formed key that a caller came with; whether it is one of ours is not known yet."""

    id: str
    text: str


def key_text(key_id: str, secret: str) -> str:
    """A key as its owner sees it: the parts with the checksum behind them."""
    body = f"{PREFIX}{key_id}{secret}"
    return body + _checksum(body)


def parse_key(text: str) -> PresentedKey | None:
    """The key in `text`, or None where it is not one: wrong length, alphabet or checksum."""
    match = _KEY.fullmatch(text)
    if match is None or match["check"] != _checksum(text[:-CHECK_LENGTH]):
        return None
    return PresentedKey(match["id"], text)


def _checksum(text: str) -> str:
    rest = zlib.crc32(text.encode())
    digits: list[str] = []
    for _ in range(CHECK_LENGTH):
        rest, digit = divmod(rest, len(_ALPHABET))
        digits.append(_ALPHABET[digit])
    return "".join(reversed(digits))


def _random(length: int) -> str:
    return "".join(secrets.choice(_ALPHABET) for _ in range(length))


class Keyring:
    """Makes and checks keys under the installation's peppers.

    Args:
        peppers: Newest first. The newest signs new keys; keys signed with an older one stay valid while it is listed.

    Raises:
        ValueError: There is no pepper, or an empty one.
    """

    def __init__(self, peppers: Sequence[str]) -> None:
        if not peppers or not all(peppers):
            raise ValueError("a keyring needs at least one pepper, and none may be empty")
        self._peppers = tuple(pepper.encode() for pepper in peppers)
        self._nothing = secrets.token_bytes(_DIGEST_BYTES)

    def issue(self) -> IssuedKey:
        """A new random key: 71 bits of id, 256 of secret."""
        key_id = _random(ID_LENGTH)
        key = PresentedKey(key_id, key_text(key_id, _random(SECRET_LENGTH)))
        return IssuedKey(key.id, key.text, self.digest(key))

    def digest(self, key: PresentedKey) -> bytes:
        """32 bytes that name the key without giving it away, under the newest pepper."""
        return _hmac(self._peppers[0], key)

    def marks(self, name: bytes) -> list[str]:
        """Hex HMAC-SHA256 of a name that is not to be kept itself, under each pepper, the newest first.

        Whoever has the peppers and the name can tell that a mark is of it.
        """
        return [hmac.digest(pepper, _MARKS + name, "sha256").hex() for pepper in self._peppers]

    def matches(self, key: PresentedKey, digest: bytes | None) -> bool:
        """Whether `digest` is the key's; it takes as long where there is none (None) as where it is another's."""
        expected = self._nothing if digest is None else digest
        found = False
        for pepper in self._peppers:
            found |= hmac.compare_digest(_hmac(pepper, key), expected)
        return found and digest is not None


def _hmac(pepper: bytes, key: PresentedKey) -> bytes:
    return hmac.digest(pepper, _DOMAIN + key.text.encode(), "sha256")


def same_secret(given: str, expected: str) -> bool:
    """Whether two secrets are equal, in a time that tells neither their content nor their length."""
    salt = secrets.token_bytes(16)
    return hmac.compare_digest(
        hmac.digest(salt, given.encode(errors="surrogatepass"), "sha256"),
        hmac.digest(salt, expected.encode(errors="surrogatepass"), "sha256"),
    )
