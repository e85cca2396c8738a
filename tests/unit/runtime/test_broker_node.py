"""A broker without ZooKeeper, and its clients: they have no part in one."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
sys.modules["kazoo"] = None  # not installed
from ottla import Admin, Broker, Consumer, Producer

def read(topic, protocol):
    with Consumer(
        bootstrap_servers=broker.bootstrap_servers, group_id=protocol, group_protocol=protocol, auto_offset_reset="earliest"
    ) as consumer:
        consumer.subscribe([topic])
        records = []
        while not records:
            records = list(consumer.poll(60))
        return len(records)

with Broker() as broker, Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
    admin.create_topics({"t": 1})
    with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        producer.send("t", b"x").result(60)
    print(read("t", "classic"), read("t", "consumer"))
    admin.delete_topics(["t"])
print([name for name in sys.modules if name.startswith("ottla.") and ("zookeeper" in name or "central" in name)])
try:
    Broker(zookeeper="127.0.0.1:1")
except Exception as error:
    print(error)
"""


def test_a_broker_without_zookeeper_and_its_clients_import_nothing_of_it() -> None:
    output = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True).stdout
    assert output == "1 1\n['ottla.errors.zookeeper']\nZooKeeper needs kazoo (pip install 'ottla[zookeeper]')\n"
