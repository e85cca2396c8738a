"""Log lines of Spark's worker processes."""

from __future__ import annotations

import re
import subprocess
import sys

SCRIPT = """
import logging, sys
from ottla.spark import worker_logs
worker_logs.configure()
worker_logs.configure()
logging.getLogger("ottla.spark.stream").warning("one")
logging.getLogger("ottla.spark.stream").info("not shown")
logging.getLogger("other").warning("as it was")
logging.basicConfig(stream=sys.stdout, format="root %(message)s")
logging.getLogger("ottla.spark.stream").warning("two")
"""


def test_a_line_has_time_level_and_logger_unless_logging_is_configured() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=True)
    first, *others = done.stderr.splitlines()
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} WARNING ottla\.spark\.stream: one", first)
    assert others == ["as it was"]
    assert done.stdout == "root two\n"
