"""Windows lose no part of a text, whatever the text."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memplane_embedding.tokens import token_ranges
from memplane_embedding.upstream import estimated_windows


class TestTokenRanges:
    @given(count=st.integers(0, 3000), size=st.integers(3, 512))
    def test_cover_all_tokens_in_full_windows_that_overlap(self, count: int, size: int) -> None:
        overlap = size // 8
        ranges = token_ranges(count, size=size, overlap=overlap)
        assert ranges[0][0] == 0
        assert ranges[-1][1] == count
        assert all(last - first <= size for first, last in ranges)
        if count > size:
            assert all(last - first == size for first, last in ranges)
        for (first, last), (following, _) in pairwise(ranges):
            assert first < following <= last - overlap

    def test_text_that_fits_is_one_window(self) -> None:
        assert token_ranges(10, size=10, overlap=1) == [(0, 10)]


class TestEstimatedWindows:
    @given(text=st.text(min_size=1, max_size=400), room=st.integers(16, 120))
    def test_cover_every_code_point_and_move_on(self, text: str, room: int) -> None:
        windows = estimated_windows(text, half_tokens=room)
        assert windows[0].start == 0
        assert windows[-1].end == len(text)
        for one, after in pairwise(windows):
            assert one.start < after.start <= one.end < after.end

    @pytest.mark.parametrize(("text", "expected"), [("a" * 100, 1), ("你" * 100, 5), ("\N{PARTY POPPER}" * 100, 9)])
    def test_counts_costly_scripts_for_more(self, text: str, expected: int) -> None:
        assert len(estimated_windows(text, half_tokens=100)) == expected
