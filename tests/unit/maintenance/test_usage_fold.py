"""Which recalls of a memory count."""

from hypothesis import given
from hypothesis import strategies as st

from memplane_core.storage.usage import REST_S, fold

NOW = 1_000_000.0

moments = st.lists(st.floats(0, 2 * NOW, allow_nan=False).map(lambda at: round(at, 3)), max_size=40)


class TestFold:
    def test_a_recall_within_a_minute_of_the_last_does_not_count(self) -> None:
        assert fold(100, [160], now=NOW) == (100, 0)
        assert fold(100, [160.001], now=NOW) == (160.001, 1)

    def test_a_bot_cannot_pump(self) -> None:
        assert fold(0, [100 + n / 100 for n in range(1000)], now=NOW) == (100, 1)

    def test_recalls_that_came_late_count_in_the_order_they_happened(self) -> None:
        assert fold(100, [200, 130, 165], now=NOW) == (165, 1)
        assert fold(100, [300, 165], now=NOW) == (300, 2)

    def test_a_clock_that_is_ahead_moves_nothing_into_the_future(self) -> None:
        assert fold(100, [NOW + 500, NOW + 9_000], now=NOW) == (NOW, 1)

    @given(st.floats(0, NOW), moments)
    def test_the_same_ones_again_change_nothing(self, last: float, touches: list[float]) -> None:
        after, _ = fold(last, touches, now=NOW)
        assert fold(after, touches, now=NOW) == (after, 0)

    @given(st.floats(0, NOW), moments)
    def test_counted_recalls_lie_more_than_a_minute_apart(self, last: float, touches: list[float]) -> None:
        after, count = fold(last, touches, now=NOW)
        assert last <= after <= max(NOW, last)
        assert (after - last) >= count * REST_S
