"""What the runner of jobs asks of the planners of its streams.

Owns the environment variable, which is set before the JVM starts: Spark starts each planner in a Python process that inherits it.
Must not know who drains, nor why. Invariant: without the variable, as in every program without the runner, nothing changes.
"""

from __future__ import annotations

import os

DRAIN = "OTTLA_PIPELINE_DRAIN"
"""The path of a file. As soon as it exists, a stream offers no more records."""


def is_draining() -> bool:
    """Whether the streams of this process offer no more records."""
    path = os.environ.get(DRAIN)
    return path is not None and os.path.exists(path)
