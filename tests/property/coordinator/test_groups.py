"""Invariants of classic groups under any order of requests, time, log failures and restarts."""

from __future__ import annotations

from hypothesis import settings

from tests.example_counts import examples
from tests.property.coordinator.classic_groups import Groups

TestGroups = Groups.TestCase
TestGroups.settings = settings(max_examples=examples(80), stateful_step_count=40, deadline=None)
