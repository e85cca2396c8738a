"""What is sent to an executor is loaded there, or an error names the host and what to install."""

from __future__ import annotations

import socket
import subprocess
import sys
import sysconfig

import pytest
from pyspark import cloudpickle

import ottla.version
from ottla.spark.batch import OttlaBatchReader
from ottla.spark.client_settings import BOOTSTRAP_SERVERS
from ottla.spark.executors import Shipped
from ottla.spark.options import parse_options
from ottla.spark.sink import OttlaBatchWriter
from ottla.spark.source import OttlaDataSource
from ottla.spark.stream import OttlaStreamReader
from ottla.spark.stream_sink import OttlaStreamWriter

GIVEN = {BOOTSTRAP_SERVERS: "localhost:9092", "subscribe": "orders"}


@pytest.fixture
def pickled() -> bytes:
    """A reader as Spark sends it."""
    data: bytes = cloudpickle.dumps(OttlaBatchReader(parse_options(GIVEN).for_batch(), ("value",), GIVEN))
    return data


def test_a_reader_arrives(pickled: bytes) -> None:
    reader = cloudpickle.loads(pickled)
    assert type(reader) is OttlaBatchReader
    assert vars(reader) == {"_options": parse_options(GIVEN).for_batch(), "_columns": ("value",), "_given": GIVEN}


@pytest.mark.parametrize("kind", [OttlaDataSource, OttlaBatchReader, OttlaStreamReader, OttlaBatchWriter, OttlaStreamWriter])
def test_all_that_spark_sends_is_shipped(kind: type) -> None:
    assert kind.__reduce_ex__ is Shipped.__reduce_ex__


def test_a_python_without_ottla_is_named(pickled: bytes) -> None:
    script = "import sys; from pyspark import cloudpickle; cloudpickle.loads(sys.stdin.buffer.read())"
    without = {"PYTHONPATH": sysconfig.get_path("purelib")}  # -S: without the checkout, which .venv refers to
    done = subprocess.run([sys.executable, "-S", "-c", script], input=pickled, env=without, capture_output=True)
    last = done.stderr.decode().splitlines()[-1]
    assert last.startswith("ImportError: Ottla is not installed for ")
    assert f" on host {socket.gethostname()}; run there: " in last
    assert last.endswith(f" -m pip install 'ottla[spark]=={ottla.version.__version__}'")
    assert b"During handling" not in done.stderr


def test_another_version_is_named(pickled: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = ottla.version.__version__
    monkeypatch.setattr(ottla.version, "__version__", "0.0.9")
    expected = f"{sys.executable} on host {socket.gethostname()} has Ottla 0.0.9, the driver has {driver}; run there: "
    with pytest.raises(ImportError) as raised:
        cloudpickle.loads(pickled)
    assert str(raised.value).startswith(expected)


def test_a_missing_dependency_is_named(pickled: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ottla.spark.batch", None)
    expected = f"Ottla cannot be loaded by {sys.executable} on host {socket.gethostname()}: import of ottla.spark.batch halted"
    with pytest.raises(ImportError) as raised:
        cloudpickle.loads(pickled)
    assert str(raised.value).startswith(expected)
