"""Tokens between services: whom they speak for, and how their secrets are replaced."""

import time
from itertools import pairwise
from typing import Any
from uuid import uuid4

import jwt
import pytest

from memplane_core.domain.errors import Unauthorized
from memplane_core.domain.tenancy import Principal, TenantId
from memplane_core.security.internal import InternalTokens

OLD = "the old internal secret, long enough"
NEW = "the new internal secret, long enough"


def principal(**bind: str) -> Principal:
    return Principal(
        tenant=TenantId(uuid4()), scopes=frozenset(("memories:read",)), key_id="key", request_id="request", **bind
    )


def resigned(token: str, *, without: str = "", **claims: Any) -> str:
    """The same token with other claims, by somebody who knows the secret."""
    header = jwt.get_unverified_header(token)
    known = jwt.decode(token, OLD, algorithms=["HS256"]) | claims
    known.pop(without, None)
    return jwt.encode(known, OLD, algorithm="HS256", headers={"kid": header["kid"]})


class TestWhatTheyCarry:
    @pytest.mark.parametrize(
        "who",
        [principal(), principal(bind_user_id="ana"), principal(bind_user_id="安娜 \n", bind_agent_id="concierge")],
    )
    def test_comes_out_as_it_went_in(self, who: Principal) -> None:
        assert InternalTokens(OLD).verify(InternalTokens(OLD).sign(who)) == who

    @pytest.mark.parametrize("claim", ["exp", "sub", "scp", "key", "rid", "usr", "agt"])
    def test_none_of_it_can_be_left_out(self, claim: str) -> None:
        tokens = InternalTokens(OLD)
        with pytest.raises(Unauthorized):
            tokens.verify(resigned(tokens.sign(principal()), without=claim))

    def test_is_good_for_a_minute(self) -> None:
        tokens = InternalTokens(OLD)
        token = tokens.sign(principal())
        claims = jwt.decode(token, OLD, algorithms=["HS256"])
        assert 0 < claims["exp"] - time.time() <= 60
        with pytest.raises(Unauthorized):
            tokens.verify(resigned(token, exp=int(time.time()) - 11))


class TestRotation:
    def test_no_step_leaves_a_service_that_another_does_not_understand(self) -> None:
        """Behind the old one everywhere, then before it everywhere, then alone: neighbouring steps overlap."""
        steps = [InternalTokens(OLD), InternalTokens(OLD, NEW), InternalTokens(NEW, OLD), InternalTokens(NEW)]
        who = principal()
        for before, after in pairwise(steps):
            assert after.verify(before.sign(who)) == who
            assert before.verify(after.sign(who)) == who

    def test_a_secret_that_was_taken_out_is_no_good_any_more(self) -> None:
        with pytest.raises(Unauthorized):
            InternalTokens(NEW).verify(InternalTokens(OLD).sign(principal()))

    @pytest.mark.parametrize("token", ["", "x", "a.b.c", jwt.encode({}, OLD, algorithm="HS256")])
    def test_what_names_no_secret_is_refused(self, token: str) -> None:
        with pytest.raises(Unauthorized):
            InternalTokens(OLD).verify(token)

    def test_an_unsigned_token_is_refused(self) -> None:
        tokens = InternalTokens(OLD)
        signed = tokens.sign(principal())
        claims = jwt.decode(signed, OLD, algorithms=["HS256"])
        forged = jwt.encode(claims, "", algorithm="none", headers=jwt.get_unverified_header(signed) | {"alg": "none"})
        with pytest.raises(Unauthorized):
            tokens.verify(forged)

    @pytest.mark.parametrize("secrets", [(), ("",), (OLD, "")])
    def test_an_empty_secret_is_none(self, secrets: tuple[str, ...]) -> None:
        with pytest.raises(ValueError, match="secret"):
            InternalTokens(*secrets)
