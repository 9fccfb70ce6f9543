"""Blocks of text for prompts: never longer than asked for, no memory cut in two, whatever is in them."""

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from memplane_core.domain.budget import COUNTERS, Counter, at_least, estimate
from memplane_core.domain.context import (
    CUT,
    ENTRY_NAMES,
    Block,
    ContextTemplate,
    Entry,
    Order,
    Section,
    check_template,
    pack,
)
from memplane_core.domain.errors import InvalidRequest

AT = datetime(2026, 5, 8, 13, 56, tzinfo=UTC)
PLAIN = ContextTemplate(header="", group="", memory="$content")
SENTENCES = [
    "I moved from Oslo to Lisbon in March.",
    "Ana prefers window seats; she can't stand being in the middle of a row!",
    "Order ORD-7781 was refunded on 2026-04-02 (149.90 EUR).",
    "HTTPServer2 restarts at 03:15, see https://example.org/a?b=c#d",
    "我在三月从奥斯陆搬到了里斯本。",
    "她喜欢靠窗的座位,不喜欢坐在中间。",
    "订单ORD-7781已于2026年4月2日退款(149.90欧元)。",
    "東京タワーへ行きました。한국어도 조금 해요.",
    "👩‍👧 на даче, café — naïve\n\n\ttabs and   spaces",
    "$content ${id} $$ {0} %s",
]


def _entry(n: int, content: str, **fields: Any) -> Entry:
    given: dict[str, Any] = {"group": "experience", "occurred_at": AT + timedelta(days=n)}
    return Entry(id=f"id-{n}", content=content, **{**given, **fields})


def _packed(contents: list[str], max_tokens: int, **more: Any) -> Block:
    entries = [_entry(n, content) for n, content in enumerate(contents)]
    given: dict[str, Any] = {"template": PLAIN, **more}
    return pack([Section(entries=entries, most=max_tokens)], max_tokens=max_tokens, **given)


class TestBudget:
    def test_500_random_blocks_in_english_and_chinese_keep_within_it(self) -> None:
        chance = random.Random(6)
        full = 0
        for case in range(500):
            entries = [
                _entry(
                    n,
                    "".join(chance.choices(SENTENCES, k=chance.randint(1, 6))),
                    group=chance.choice(["", "experience", "见解", "a\nb"]),
                    actor=chance.choice([None, "Ana", "小明"]),
                )
                for n in range(chance.randrange(30))
            ]
            at = chance.randrange(len(entries) + 1)
            budget = chance.choice([1, 5, 20, 60, 200, 1_000, 5_000])
            sections = [
                Section(entries=entries[:at], most=budget // 2, order=chance.choice(["useful", "time"])),
                Section(entries=entries[at:], most=budget),
            ]
            counter: Counter = chance.choice(["estimate", "bytes"])
            template = chance.choice(
                [ContextTemplate(), PLAIN, ContextTemplate(group="", memory="$date\n- $content\n")]
            )
            block = pack(
                sections, max_tokens=budget, template=template, counter=counter, allow_truncation=case % 2 == 0
            )
            assert block.tokens == COUNTERS[counter](block.text) <= budget
            assert len(block.placed) + block.left_out == len(entries)
            for placed in block.placed:
                assert placed.entry.content in block.text
                if placed.truncated:
                    assert case % 2 == 0
                    whole = next(entry for entry in entries if entry.id == placed.entry.id).content
                    assert whole.startswith(placed.entry.content.removesuffix(CUT))
            full += bool(block.left_out)
        assert 100 < full < 450

    def test_what_is_too_long_makes_way_for_what_is_not(self) -> None:
        block = _packed(["a" * 4, "b" * 400, "c" * 4, "d" * 4], 5)
        assert block.text == "aaaa\ncccc\ndddd"
        assert (block.tokens, block.left_out) == (5, 1)

    def test_nothing_comes_to_nothing(self) -> None:
        for contents in ([], ["b" * 400]):
            block = _packed(contents, 10, template=ContextTemplate())
            assert (block.text, block.tokens, block.placed) == ("", 0, [])

    def test_what_one_section_leaves_is_the_next_ones(self) -> None:
        first = [_entry(n, "a" * 4) for n in range(10)]
        second = [_entry(n, "b" * 4) for n in range(10, 20)]
        for few, taken in ((first, "a" * 2 + "b" * 3), (first[:1], "a" + "b" * 4)):
            sections = [Section(entries=few, most=4), Section(entries=second, most=9)]
            block = pack(sections, max_tokens=9, template=PLAIN)
            assert "".join(line[0] for line in block.text.split("\n")) == taken


class TestOrder:
    def _block(self, order: Order) -> str:
        entries = [
            _entry(3, "third", group="x"),
            _entry(1, "first", group="y"),
            _entry(2, "second", group="x"),
        ]
        template = ContextTemplate(header="Known:", group="## $group", memory="[$n] $date $who$content")
        return pack([Section(entries=entries, most=500, order=order)], max_tokens=500, template=template).text

    def test_groups_and_memories_stand_by_usefulness(self) -> None:
        assert self._block("useful").split("\n") == [
            "Known:", "## x", "[1] 2026-05-11 third", "[3] 2026-05-10 second", "## y", "[2] 2026-05-09 first",
        ]  # fmt: skip

    def test_or_by_time_within_their_groups(self) -> None:
        assert self._block("time").split("\n") == [
            "Known:", "## x", "[3] 2026-05-10 second", "[1] 2026-05-11 third", "## y", "[2] 2026-05-09 first",
        ]  # fmt: skip


class TestCutting:
    def test_nothing_is_cut_unless_it_is_asked_for(self) -> None:
        text = "word " * 100
        assert _packed([text], 50).text == ""
        block = _packed([text], 50, allow_truncation=True)
        assert block.text == "word " * 47 + "word" + CUT
        assert block.placed[0].truncated

    def test_one_at_most_and_none_to_a_stump(self) -> None:
        block = _packed(["word " * 100, "other " * 100, "short"], 60, allow_truncation=True)
        assert [placed.truncated for placed in block.placed] == [True]
        assert _packed(["word " * 100], 4, allow_truncation=True).text == ""

    def test_no_character_is_cut_in_two(self) -> None:
        text = "e\u0301" * 40 + "👩‍👧" * 40
        for budget in range(20, 200):
            kept = _packed([text], budget, allow_truncation=True, counter="bytes").text.removesuffix(CUT)
            assert text.startswith(kept)
            assert not text[len(kept) :].startswith(("\u0301", "\u200d"))


class TestTemplates:
    def test_the_text_of_a_memory_is_never_read_as_a_template(self) -> None:
        content = "costs $5, ${id} and $$n {content} \\g<0>"
        block = _packed([content], 100, template=ContextTemplate(header="$$", group="", memory="<$id|$content>"))
        assert block.text == f"$\n<id-0|{content}>"

    def test_all_that_a_line_can_name(self) -> None:
        names = (*(name for name in ENTRY_NAMES if name != "content"), "content")
        template = ContextTemplate(header="", group="", memory="|".join(f"${name}" for name in names))
        check_template(template, pointer="")
        entry = _entry(
            0, "text", actor="Ana", memory_type="t", source="s", scene=["a", "b"], user_id="u", agent_id="g",
            session_id="x", importance=0.0, priority=4, relevance=1 / 3,
        )  # fmt: skip
        text = pack([Section(entries=[entry], most=500)], max_tokens=500, template=template).text
        assert text == "1|id-0|2026-05-08|13:56|Ana: |Ana|t|s|a, b|u|g|x|0|4|0.333|text"

    @pytest.mark.parametrize(
        ("template", "pointer"),
        [
            (ContextTemplate(memory="$date"), "/t/memory"),
            (ContextTemplate(memory="$content $secret"), "/t/memory"),
            (ContextTemplate(memory="$content $"), "/t/memory"),
            (ContextTemplate(memory="$content\0"), "/t/memory"),
            (ContextTemplate(memory="$content ${content.__class__}"), "/t/memory"),
            (ContextTemplate(memory="$content ${content}"), "/t/memory"),
            (ContextTemplate(memory="$content" + "$id" * 32), "/t/memory"),
            (ContextTemplate(group="$group" * 33), "/t/group"),
            (ContextTemplate(group="$content"), "/t/group"),
            (ContextTemplate(header="$group"), "/t/header"),
        ],
    )
    def test_what_could_not_be_filled_in_is_refused(self, template: ContextTemplate, pointer: str) -> None:
        with pytest.raises(InvalidRequest) as error:
            check_template(template, pointer="/t")
        assert [fault.pointer for fault in error.value.faults] == [pointer]


class TestEstimate:
    @pytest.mark.parametrize(
        ("text", "tokens"),
        [
            ("", 0), ("a", 1), ("memory", 2), ("I moved", 3), ("HTTPServer", 3), ("2026-05", 7), ("a  b", 3),
            ("搬家", 3), ("三", 2), ("é", 1), ("👍", 3), ("\n\n", 2),
        ],
    )  # fmt: skip
    def test_what_a_text_counts_for(self, text: str, tokens: int) -> None:
        assert estimate(text) == tokens

    def test_no_text_comes_to_less_than_its_length_tells(self) -> None:
        chance = random.Random(8)
        for _ in range(500):
            text = "".join(chance.choices([*SENTENCES, "word ", "abcd efgh"], k=3))
            assert at_least(text) <= min(counter(text) for counter in COUNTERS.values())

    def test_lines_never_come_to_more_together(self) -> None:
        chance = random.Random(7)
        for counter in COUNTERS.values():
            for _ in range(500):
                lines = chance.choices(SENTENCES, k=chance.randint(1, 5))
                assert counter("\n".join(lines)) <= sum(map(counter, lines)) + len(lines) - 1
