"""Merging and giving back are each other's reverse, in any order, and leave alone what was changed besides."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from memplane_core.domain.merge_ledger import (
    Balance,
    Ledger,
    Standing,
    absorb,
    bring_anew,
    give_back,
    overwritten,
    settled,
)

AT = datetime(2026, 3, 1, 12, tzinfo=UTC)


def standing(**fields: Any) -> Standing:
    given_: dict[str, Any] = {
        "scene": [],
        "importance": 0.5,
        "priority": 3,
        "last_accessed_at": AT,
        "uses": 0,
        "helpful": 0,
        "not_helpful": 0,
    }
    return Standing(**{**given_, **fields})


standings = st.builds(
    standing,
    scene=st.lists(st.sampled_from("abcdef"), unique=True),
    importance=st.floats(0, 1),
    priority=st.integers(1, 5),
    last_accessed_at=st.integers(0, 10**6).map(lambda s: AT + timedelta(microseconds=s)),
    uses=st.integers(0, 10**6),
    helpful=st.integers(0, 9),
    not_helpful=st.integers(0, 9),
)


def stored(ledger: Ledger) -> Ledger:
    """The ledger as it comes back from the database."""
    return msgspec.json.decode(msgspec.json.encode(ledger), type=Ledger)


class TestGivingBack:
    @given(
        standings,
        st.lists(st.lists(standings, min_size=1, max_size=3), min_size=1, max_size=3),
        st.randoms(),
        st.booleans(),
    )
    def test_in_any_order_ends_where_merging_began(
        self, own: Standing, batches: list[list[Standing]], order: Any, fixed: bool
    ) -> None:
        now, ledger, merged = own, None, list[UUID]()
        for batch in batches:
            brought = [(UUID(int=len(merged) + n), its) for n, its in enumerate(batch)]
            made = absorb(now, ledger, brought, merged=merged, fixed=fixed)
            assert made.ledger is not None
            now, ledger = made.standing, stored(made.ledger)
            merged += [memory_id for memory_id, _ in brought]
        everybody = [own, *(its for batch in batches for its in batch)]
        assert now.uses == sum(its.uses for its in everybody)
        if not fixed:
            assert set(now.scene) == {scene for its in everybody for scene in its.scene}
            assert now.priority == max(its.priority for its in everybody)
        order.shuffle(merged)
        while merged:
            gone = merged.pop()
            assert ledger is not None
            made = give_back(now, ledger, [gone], merged=merged)
            now, ledger = made.standing, made.ledger and stored(made.ledger)
        assert (now, ledger) == (own, None)

    def test_what_another_one_brought_too_stays(self) -> None:
        made = merged_of(standing(), standing(scene=["x"], importance=0.9), standing(scene=["x", "y"], importance=0.8))
        assert made.ledger is not None
        after = give_back(made.standing, made.ledger, [UUID(int=0)], merged=[UUID(int=1)])
        assert (after.standing.scene, after.standing.importance) == (["x", "y"], 0.8)

    def test_sums_stay_within_what_can_be_kept_and_exported(self) -> None:
        most = standing(uses=2**53, helpful=2_000_000_000, not_helpful=2_000_000_000)
        made = absorb(most, None, [(UUID(int=1), most)], merged=[], fixed=False).standing
        assert (made.uses, made.helpful, made.not_helpful) == (2**53, 2_000_000_000, 2_000_000_000)


class TestWhatIsChangedMeanwhile:
    def test_a_field_that_somebody_has_set_stays_and_uses_go_on(self) -> None:
        made = merged_of(standing(scene=["a"]), standing(scene=["b"], importance=0.9, priority=5, uses=4))
        assert made.ledger is not None
        changed = msgspec.structs.replace(made.standing, scene=["c"], uses=made.standing.uses + 3)
        after = give_back(changed, made.ledger, [UUID(int=0)], merged=[])
        assert after.standing == standing(scene=["c"], uses=3)
        assert after.ledger is None

    def test_a_later_access_stays(self) -> None:
        made = merged_of(standing(), standing(last_accessed_at=AT + timedelta(days=1)))
        assert made.ledger is not None
        later = msgspec.structs.replace(made.standing, last_accessed_at=AT + timedelta(days=2))
        after = give_back(later, made.ledger, [UUID(int=0)], merged=[])
        assert after.standing.last_accessed_at == AT + timedelta(days=2)

    def test_what_was_set_between_two_merges_is_its_own(self) -> None:
        made = merged_of(standing(importance=0.1), standing(importance=0.5))
        assert made.ledger is not None
        changed = msgspec.structs.replace(made.standing, importance=0.3)
        again = absorb(
            changed, made.ledger, [(UUID(int=7), standing(importance=0.8))], merged=[UUID(int=0)], fixed=False
        )
        assert (again.standing.importance, again.ledger is not None) == (0.8, True)
        assert again.ledger is not None
        after = give_back(again.standing, again.ledger, [UUID(int=7)], merged=[UUID(int=0)])
        assert after.standing.importance == 0.3

    def test_what_one_brought_that_is_gone_for_good_becomes_its_own(self) -> None:
        made = merged_of(standing(), standing(scene=["x"], importance=0.9), standing(scene=["y"]))
        assert made.ledger is not None
        after = give_back(made.standing, made.ledger, [UUID(int=1)], merged=[])
        assert (after.standing.scene, after.standing.importance, after.ledger) == (["x"], 0.9, None)


class TestLedgersThatShrink:
    @given(standings, st.lists(standings, min_size=1, max_size=5), st.sets(st.integers(0, 4)), st.booleans())
    def test_giving_back_comes_to_the_same_whether_what_is_gone_was_dropped_before_or_not(
        self, own: Standing, others: list[Standing], gone: set[int], edited: bool
    ) -> None:
        made = merged_of(own, *others)
        assert made.ledger is not None
        now = msgspec.structs.replace(made.standing, scene=["z"]) if edited else made.standing
        left = [UUID(int=n) for n in range(len(others)) if n not in gone]
        smaller = settled(now, made.ledger, merged=left)
        assert [its.id for its in smaller.taken if smaller] == left if smaller else left == []
        for memory_id in left:
            assert smaller is not None
            assert give_back(now, smaller, [memory_id], merged=left) == give_back(
                now, made.ledger, [memory_id], merged=left
            )

    def test_what_is_set_back_to_what_it_was_is_its_own_too(self) -> None:
        made = merged_of(standing(scene=["a"]), standing(scene=["b"]), standing(scene=["c"]))
        assert made.ledger is not None
        edited = msgspec.structs.replace(made.standing, scene=["z"])
        smaller = settled(edited, made.ledger, merged=[UUID(int=1)])
        assert smaller is not None
        assert give_back(made.standing, smaller, [UUID(int=1)], merged=[UUID(int=1)]).standing.scene == ["a", "b", "c"]


class TestOverwriting:
    @given(standings, st.lists(standings, min_size=1, max_size=3), standings)
    def test_what_a_file_says_is_given_back_and_no_uses_that_are_not_there(
        self, own: Standing, others: list[Standing], here: Standing
    ) -> None:
        """As in an import over what is not merged here: it is the survivor of the file, and its usage stays."""
        told = merged_of(own, *others)
        now = msgspec.structs.replace(
            told.standing,
            **{name: getattr(here, name) for name in ("last_accessed_at", "uses", "helpful", "not_helpful")},
        )
        ledger = overwritten(now, None, told.ledger)
        assert ledger is not None
        assert overwritten(now, ledger, told.ledger) == ledger  # imported again
        ids = [UUID(int=n) for n in range(len(others))]
        after = give_back(now, ledger, ids, merged=ids).standing
        assert (after.scene, after.importance, after.priority) == (own.scene, own.importance, own.priority)
        assert (after.last_accessed_at, after.uses, after.helpful) == (here.last_accessed_at, here.uses, here.helpful)

    def test_uses_that_were_brought_here_go_back_and_fields_that_the_file_says_stay(self) -> None:
        made = merged_of(standing(scene=["a"], uses=1), standing(scene=["b"], uses=5), standing(scene=["c"], uses=2))
        now = msgspec.structs.replace(made.standing, scene=["a", "b"])
        ledger = overwritten(now, made.ledger, None)
        assert ledger is not None
        after = give_back(now, ledger, [UUID(int=0)], merged=[UUID(int=0), UUID(int=1)]).standing
        assert (after.scene, after.uses) == (["a", "b"], 3)

    def test_the_same_ledger_stays_as_it_is(self) -> None:
        made = merged_of(standing(), standing(scene=["b"]))
        edited = msgspec.structs.replace(made.standing, scene=["z"])
        assert overwritten(edited, made.ledger, made.ledger) is made.ledger
        assert overwritten(edited, None, None) is None


class TestChains:
    def test_one_that_gives_back_brings_less_to_what_it_was_merged_into(self) -> None:
        made = merged_of(standing(uses=1), standing(scene=["x", "y"], uses=10, priority=5))
        assert made.ledger is not None
        less = standing(scene=["x"], uses=4)
        after = bring_anew(made.standing, made.ledger, UUID(int=0), less, merged=[UUID(int=0)])
        assert after.standing == standing(scene=["x"], uses=5)
        assert after.ledger is not None
        assert give_back(after.standing, after.ledger, [UUID(int=0)], merged=[]).standing == standing(uses=1)


def merged_of(own: Standing, *others: Standing) -> Balance:
    """Others, numbered from 0, merged into one."""
    return absorb(own, None, [(UUID(int=n), its) for n, its in enumerate(others)], merged=[], fixed=False)
