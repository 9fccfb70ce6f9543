import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memplane_core.domain.text import mostly_cjk, terms, tokens


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The orders were refunded", ["order", "were", "refund"]),
        ("ORD-7781 v2.31", ["ord-7781", "v2.31"]),
        ("well-known", ["well", "known"]),
        ("订单已经退款成功", ["订单", "单已", "已经", "经退", "退款", "款成", "成功"]),
        ("猫", ["猫"]),
        ("Café ＦＵＬＬ naïve", ["cafe", "full", "naiv"]),
        ("iPhone15手机 broken", ["iphone15", "手机", "broken"]),
        ("привет 하이", ["привет", "하이"]),
        ("  \n\t!?…", []),
    ],
)
def test_tokens_of(text: str, expected: list[str]) -> None:
    assert tokens(text) == expected


def test_a_query_and_a_memory_share_their_tokens_whatever_case_and_ending() -> None:
    assert set(tokens("Refunding ORDERS?")) <= set(tokens("the order was refunded"))
    assert set(tokens("退款")) <= set(tokens("订单已经退款成功"))


@given(st.text(max_size=300))
def test_tokens_hold_no_white_space_and_are_never_empty_or_endless(text: str) -> None:
    found = tokens(text)
    assert all(token and token.split() == [token] and len(token) <= 64 for token in found)
    assert found == tokens(text)


def test_terms_are_the_first_bytes_of_each_tokens_md5_in_order() -> None:
    assert terms("Refunds, 退款 refund") == b"".join(
        hashlib.md5(token.encode(), usedforsecurity=False).digest()[:4] for token in ("refund", "退款", "refund")
    )
    assert terms("!?") == b""


@pytest.mark.parametrize(
    ("text", "cjk"),
    [
        ("退款", True),
        ("", False),
        ("refund", False),
        ("ORD-7781 退款成功了吗", True),
        ("see 退款", False),
        ("12:30", False),
    ],
)
def test_a_text_is_cjk_where_at_least_half_of_its_letters_are(text: str, cjk: bool) -> None:
    assert mostly_cjk(text) is cjk
