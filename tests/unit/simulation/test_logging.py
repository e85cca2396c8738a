"""A run logs nothing, and changes nothing for what is logged after it in the same process."""

from __future__ import annotations

import logging

import pytest

from ottla.simulation.outcome import Generation
from ottla.simulation.run import run


def test_after_a_run_warnings_are_logged_as_before(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "ottla")
    run(Generation.ZOOKEEPER, 1)
    assert not caplog.records
    names = [name for name in logging.root.manager.loggerDict if name.startswith("ottla.")]
    assert [name for name in names if not logging.getLogger(name).isEnabledFor(logging.WARNING)] == []
    logging.getLogger("ottla.client.poll_timer").warning("too late")
    assert [record.message for record in caplog.records] == ["too late"]
