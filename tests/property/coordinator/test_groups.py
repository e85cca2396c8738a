"""Whatever clients, time, logs and restarts do to classic groups, in any order: what must hold after each step."""

from __future__ import annotations

from hypothesis import settings

from tests.example_counts import examples
from tests.property.coordinator.classic_groups import Groups

TestGroups = Groups.TestCase
TestGroups.settings = settings(max_examples=examples(80), stateful_step_count=40, deadline=None)
