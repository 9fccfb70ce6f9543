"""API keys: their shape, their checksum, and telling the genuine from all others."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memplane_core.security.keys import (
    CHECK_LENGTH,
    ID_LENGTH,
    KEY_LENGTH,
    PREFIX,
    Keyring,
    PresentedKey,
    parse_key,
    same_secret,
)

PEPPER = "pepper of the tests, which is long enough"
BASE62 = string.digits + string.ascii_letters
KEY = Keyring([PEPPER]).issue().text


def present(text: str) -> PresentedKey:
    key = parse_key(text)
    assert key is not None
    return key


class TestIssuing:
    def test_a_new_key_has_the_documented_shape_and_is_recognised(self) -> None:
        ring = Keyring([PEPPER])
        issued = ring.issue()
        assert issued.text.startswith(PREFIX)
        assert len(issued.text) == KEY_LENGTH == 69
        assert set(issued.text[len(PREFIX) :]) <= set(BASE62)
        assert issued.text[len(PREFIX) :][:ID_LENGTH] == issued.id
        assert len(issued.digest) == 32
        assert parse_key(issued.text) == PresentedKey(issued.id, issued.text)
        assert ring.matches(present(issued.text), issued.digest)

    def test_no_two_keys_share_an_id_or_a_secret(self) -> None:
        ring = Keyring([PEPPER])
        issued = [ring.issue() for _ in range(200)]
        assert len({key.id for key in issued}) == 200
        assert len({key.text[len(PREFIX) + ID_LENGTH : -CHECK_LENGTH] for key in issued}) == 200

    def test_the_digest_does_not_hold_the_key_and_depends_on_the_pepper(self) -> None:
        issued = Keyring([PEPPER]).issue()
        key = present(issued.text)
        assert issued.text.encode() not in issued.digest
        assert Keyring([PEPPER]).digest(key) == issued.digest
        assert Keyring([PEPPER + "!"]).digest(key) != issued.digest

    @pytest.mark.parametrize("peppers", [[], [""], [PEPPER, ""]])
    def test_a_keyring_without_a_pepper_is_refused(self, peppers: list[str]) -> None:
        with pytest.raises(ValueError, match="pepper"):
            Keyring(peppers)


class TestMistypedKeys:
    @given(st.integers(len(PREFIX), KEY_LENGTH - 1), st.sampled_from(BASE62))
    def test_any_one_wrong_character_is_noticed(self, at: int, character: str) -> None:
        text = KEY[:at] + character + KEY[at + 1 :]
        assert (parse_key(text) is None) == (text != KEY)

    @given(st.integers(len(PREFIX), KEY_LENGTH - 2))
    def test_two_neighbours_swapped_are_noticed(self, at: int) -> None:
        text = KEY[:at] + KEY[at + 1] + KEY[at] + KEY[at + 2 :]
        assert (parse_key(text) is None) == (text != KEY)

    @given(st.text())
    def test_no_text_raises(self, text: str) -> None:
        assert parse_key(text) is None
        assert parse_key(PREFIX + text) is None

    def test_what_surrounds_a_key_is_not_part_of_it(self) -> None:
        text = Keyring([PEPPER]).issue().text
        for wrong in (
            text + "\n",
            " " + text,
            text + "0",
            text[:-1],
            text.replace("mp_live_", "mp_test_"),
            text.upper(),
        ):
            assert parse_key(wrong) is None


class TestMatching:
    def test_another_key_with_the_same_id_does_not_match(self) -> None:
        ring = Keyring([PEPPER])
        genuine, other = ring.issue(), ring.issue()
        assert not ring.matches(present(other.text), genuine.digest)

    def test_nothing_matches_an_absent_key(self) -> None:
        ring = Keyring([PEPPER])
        assert not ring.matches(present(ring.issue().text), None)

    def test_a_key_of_an_older_pepper_stays_valid_while_it_is_listed(self) -> None:
        issued = Keyring(["old pepper"]).issue()
        assert Keyring(["new pepper", "old pepper"]).matches(present(issued.text), issued.digest)
        assert not Keyring(["new pepper"]).matches(present(issued.text), issued.digest)

    def test_the_newest_pepper_signs(self) -> None:
        issued = Keyring(["new pepper", "old pepper"]).issue()
        assert Keyring(["new pepper"]).matches(present(issued.text), issued.digest)


@given(st.text(), st.text())
def test_secrets_are_the_same_only_if_they_are_equal(given_secret: str, expected: str) -> None:
    assert same_secret(given_secret, expected) == (given_secret == expected)
    assert same_secret(expected, expected)
