"""The page about maintenance says what holds."""

import re
from pathlib import Path

import msgspec

from memplane_core.contracts.policy import MaintenancePatch, MaintenancePolicy, PolicyPatch
from memplane_core.domain.priority import PriorityRules

PAGE = (Path(__file__).parents[3] / "docs" / "maintenance.md").read_text()


def test_its_examples_of_a_policy_are_changes_to_one() -> None:
    examples = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    assert examples
    for example in examples:
        assert isinstance(msgspec.json.decode(example, type=PolicyPatch).maintenance, MaintenancePatch)


def test_it_names_every_part_of_the_policy_and_every_default_threshold() -> None:
    for name in MaintenancePolicy.__struct_fields__:
        assert name in PAGE, name
    for threshold in PriorityRules().thresholds:
        assert f"at least {threshold:g}" in PAGE, threshold
