"""The pages about valid time, blocks for prompts and named policies show what the routes take."""

import re
from pathlib import Path

import msgspec
import pytest

from memplane_core.contracts.context import ContextRequest
from memplane_core.contracts.lists import ListRequest
from memplane_core.contracts.memories import MemoryWrite, SearchRequest
from memplane_core.contracts.presets import PRESETS, PolicyChange, policy_changes
from memplane_core.domain.budget import COUNTERS
from memplane_core.domain.context import ENTRY_NAMES, ContextTemplate

DOCS = Path(__file__).parents[3] / "docs"


def _examples(page: str) -> list[str]:
    return re.findall(r"```json\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)


def test_a_question_and_a_write_of_the_page_about_valid_time_are_such() -> None:
    asked, written = _examples("validity.md")
    assert msgspec.json.decode(asked, type=SearchRequest).valid_at == "2025-07-14T00:00:00Z"
    assert msgspec.json.decode(written, type=MemoryWrite).supersedes is not None
    [listed] = re.findall(r"`(\{\"filters\".*?\})`", (DOCS / "validity.md").read_text())
    assert msgspec.json.decode(listed, type=ListRequest).valid_at == "any"


def test_the_page_about_blocks_tells_what_a_template_is_by_default_and_can_name() -> None:
    page = (DOCS / "context.md").read_text()
    for example in _examples("context.md"):
        msgspec.json.decode(example, type=ContextRequest)
    for line in msgspec.structs.astuple(ContextTemplate()):
        assert f"`{line}`" in page, line
    for name in ENTRY_NAMES:
        assert f"`${name}`" in page, name
    for counter in COUNTERS:
        assert f"| `{counter}` |" in page


@pytest.mark.parametrize("body", re.findall(r"PATCH /v1/policy +(\{.*\})", (DOCS / "presets.md").read_text()))
def test_a_change_of_policy_is_one(body: str) -> None:
    change = msgspec.json.decode(body, type=PolicyChange)
    assert change.like in PRESETS
    assert policy_changes(change)
