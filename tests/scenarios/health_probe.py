"""A probe of an application's health."""

from __future__ import annotations

from ottla import Health
from ottla.client.health.verdicts import Assessor
from ottla.simulation.application import App


class Probe:
    """Probes an application's health repeatedly."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._assessor = Assessor("g", 6_000)

    def look(self, stuck_after: int = 60_000) -> Health:
        view = self._app.assembly.inspection.view(self._app.now)
        return self._assessor.assess(view, self._app.calls.shared.consumed(), stuck_after)
