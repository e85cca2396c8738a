"""The start time of a broker: from ``Broker()`` to its first Metadata response, after the imports and in a fresh process.

Each round is a separate process. The request is sent over a bare socket, so the start of a client is not included. The figures are
medians of the rounds, in milliseconds; the limits are those of the README.

    python benchmarks/startup.py [--rounds 9] [--without-hypothesis]

``--without-hypothesis`` hides the package hypothesis, which kio imports if it is installed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys

PROGRAM = """
import sys
if sys.argv[1] == "hide": sys.modules["hypothesis"] = None
import json, socket, struct, time

def first_answer():
    from ottla import Broker
    with Broker() as broker:
        host, port = broker.bootstrap_servers.split(":")
        with socket.create_connection((host, int(port))) as sock:
            sock.sendall(struct.pack(">ihhihi", 14, 3, 1, 1, -1, 0))
            size, = struct.unpack(">i", sock.recv(4, socket.MSG_WAITALL))
            assert len(sock.recv(size, socket.MSG_WAITALL)) == size
        return time.perf_counter()

begin = time.perf_counter()
import ottla
imported = time.perf_counter()
fresh = first_answer()
again = time.perf_counter()
warm = first_answer()
import ottla.embedded
print(json.dumps({"import": imported - begin, "fresh": fresh - begin, "warm": warm - again}))
"""

IMPORTED = """
import ottla.embedded, ottla.broker.core, ottla.runtime.broker_node
"""

TARGETS = {"import": 100, "fresh": 500, "once": 150}
TITLES = {
    "import": "import ottla",
    "fresh": "Broker() to first answer, fresh process, from import ottla",
    "once": "Broker() to first answer, once imported",
    "warm": "Broker() to first answer, the second one of a process",
}


def measure(hide: bool) -> dict[str, float]:
    """Return the seconds of two fresh processes: one includes the imports, the other imports before the measurement."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    flag = "hide" if hide else "show"

    def run(program: str) -> dict[str, float]:
        done = subprocess.run([sys.executable, "-c", program, flag], capture_output=True, text=True, check=True, env=environment)
        found: dict[str, float] = json.loads(done.stdout)
        return found

    figures = run(PROGRAM)
    before = PROGRAM.replace("begin = time.perf_counter()", IMPORTED + "begin = time.perf_counter()")
    return {**figures, "once": run(before)["fresh"]}


def main() -> int:
    """Print the table. The exit code is 1 if a limit is exceeded."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--without-hypothesis", action="store_true")
    options = parser.parse_args()
    rounds = [measure(options.without_hypothesis) for _ in range(options.rounds)]
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, median of {options.rounds}, ms")
    broken = 0
    for name, title in TITLES.items():
        figures = [one[name] * 1000 for one in rounds]
        limit = TARGETS.get(name)
        median = statistics.median(figures)
        broken += limit is not None and median > limit
        print(f"{title:62} {median:7.0f}   (least {min(figures):.0f}{f', target {limit}' if limit else ''})")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
