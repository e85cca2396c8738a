"""A broker without ZooKeeper: it has no part in one."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
sys.modules["kazoo"] = None  # not installed
from ottla import Admin, Broker
with Broker() as broker, Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
    admin.create_topics({"t": 1})
    admin.delete_topics(["t"])
parts = ("zookeeper", "coordinator.central", "central_coordinator")
print([name for name in sys.modules if name.startswith("ottla.") and any(part in name for part in parts) and "errors" not in name])
try:
    Broker(zookeeper="127.0.0.1:1")
except Exception as error:
    print(error)
"""


def test_a_broker_without_zookeeper_imports_nothing_of_it() -> None:
    output = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True).stdout
    assert output == "[]\nZooKeeper needs kazoo (pip install 'ottla[zookeeper]')\n"
