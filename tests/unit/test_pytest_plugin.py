"""The pytest plugin, in test sessions of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = [pytest.mark.long, pytest.mark.slow]


def test_every_test_gets_its_own_topic_on_one_broker(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest
        from ottla.admin import Admin

        @pytest.fixture(scope="session")
        def kafka_broker_settings():
            return {"num.partitions": 2}

        seen = []

        @pytest.mark.parametrize("value", ["one", "t w o / \\u00fc"])
        def test_fresh(kafka_broker, kafka_topic, value):
            assert kafka_topic not in [topic for topic, _ in seen]
            seen.append((kafka_topic, kafka_broker.bootstrap_servers))
            assert len({servers for _, servers in seen}) == 1

        @pytest.mark.kafka_topic(partitions=6, configs={"retention.ms": "-1"})
        def test_marked(kafka_broker, kafka_topic):
            with Admin(bootstrap_servers=kafka_broker.bootstrap_servers) as admin:
                assert len(admin.describe_topics([kafka_topic])[kafka_topic].partitions) == 6
        """
    )
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "--strict-markers")
    result.assert_outcomes(passed=3)


def test_faults_end_with_the_test_that_set_them(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.fixture
        def user(kafka_broker):
            yield
            assert list(kafka_broker.faults) == []

        def test_one(kafka_broker, user):
            kafka_broker.faults.freeze()

        def test_two(kafka_broker, kafka_topic):
            assert list(kafka_broker.faults) == []
        """
    )
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=2)


def test_a_marker_that_means_nothing_is_an_error_of_its_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.kafka_topic(partition=6)
        def test_a_slip(kafka_topic): ...

        @pytest.mark.kafka_topic(6, configs={})
        def test_a_position(kafka_topic): ...

        @pytest.mark.kafka_topic(partitions="6")
        def test_a_type(kafka_topic): ...
        """
    )
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(errors=3)
    result.stdout.fnmatch_lines(
        [
            "kafka_topic(partition=6): the marker takes only the keywords partitions=1 and configs={}",
            "kafka_topic(6, configs={}): the marker takes only the keywords partitions=1 and configs={}",
            "E * must be a whole number, not '6'",
        ]
    )


def test_loading_the_plugin_imports_no_other_module() -> None:
    code = "import sys, pytest, ottla.testing; print([m for m in sys.modules if m.startswith(('ottla.', 'kio'))])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['ottla.version', 'ottla.testing']"


def test_a_broker_that_a_test_closed_is_started_for_the_next(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        addresses = []

        def test_one(kafka_broker, kafka_topic):
            addresses.append(kafka_broker.bootstrap_servers)
            kafka_broker.close()

        def test_two(kafka_broker, kafka_topic):
            assert addresses == [kafka_broker.bootstrap_servers]
        """
    )
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=2)


def test_markers_of_a_class_and_of_a_test_add_up(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest
        from ottla.admin import Admin

        @pytest.mark.kafka_topic(partitions=4, configs={"retention.ms": "7", "segment.ms": "8"})
        class TestBoth:
            @pytest.mark.kafka_topic(configs={"retention.ms": "-1"})
            def test_configs(self, kafka_broker, kafka_topic):
                with Admin(bootstrap_servers=kafka_broker.bootstrap_servers) as admin:
                    assert len(admin.describe_topics([kafka_topic])[kafka_topic].partitions) == 4
                    configs = admin.describe_configs("topic", kafka_topic)
                assert (configs["retention.ms"].value, configs["segment.ms"].value) == ("-1", "8")

            @pytest.mark.kafka_topic(partitions=2)
            def test_partitions(self, kafka_broker, kafka_topic):
                with Admin(bootstrap_servers=kafka_broker.bootstrap_servers) as admin:
                    assert len(admin.describe_topics([kafka_topic])[kafka_topic].partitions) == 2
        """
    )
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=2)


def test_one_zookeeper_serves_all_tests_and_runs_again_after_one_that_killed_it(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.fixture(scope="session")
        def zookeeper_server_settings():
            return {"tickTime": 500}

        seen = set()

        @pytest.mark.parametrize("number", [1, 2])
        def test_killed(zookeeper_server, number):
            seen.add(zookeeper_server.connect_string)
            assert len(seen) == 1
            assert zookeeper_server.modes() == {1: "standalone"}
            assert "tickTime=500" in (zookeeper_server.data_dir / "node-1" / "zoo.cfg").read_text().splitlines()
            zookeeper_server.kill()
        """
    )
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=2)


def test_a_zookeeper_that_cannot_start_is_an_error_with_the_reason(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(pytester.path))
    pytester.makepyfile("def test_one(zookeeper_server): ...")
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([f"zookeeper_server: there is no Java in JAVA_HOME ({pytester.path}) (install Java 17 *"])
    assert "Traceback" not in result.stdout.str()


def test_the_output_of_a_zookeeper_that_ends_is_in_the_error(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVER_JVMFLAGS", "-Xmx1")
    pytester.makepyfile("def test_one(zookeeper_server): ...")
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["zookeeper_server: node 1 of ZooKeeper does not run*", "Too small maximum heap"])


def test_a_spark_session_without_java_is_an_error_with_the_reason(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(pytester.path))
    pytester.makepyfile("def test_one(run_queries): ...")
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([f"spark_session: there is no Java in JAVA_HOME ({pytester.path}) (install Java 17 *"])
    assert "Traceback" not in result.stdout.str()


@pytest.mark.timeout(400)
def test_queries_run_on_records_of_the_test(pytester: pytest.Pytester) -> None:
    """With aggregates in both output modes, a query that fails, and topics that are empty again in the next test."""
    pytester.makefile(
        ".py",
        job="""
        import os

        def price(value):
            return {"coffee": 3}[value]

        def queries(spark):
            servers = {"kafka.bootstrap.servers": os.environ["OTTLA_BOOTSTRAP_SERVERS"]}
            frame = spark.readStream.format("ottla").options(**servers, subscribe="orders", startingOffsets="earliest").load()
            drinks = frame.selectExpr("CAST(key AS STRING) AS name", "CAST(value AS STRING) AS drink")
            spark.udf.register("price", price, "int")
            totals = drinks.groupBy("drink").count()
            priced = drinks.selectExpr("name", "price(drink) AS price")
            return {
                "all": totals.writeStream.outputMode("complete").format("console"),
                "changed": totals.writeStream.outputMode("update").format("console"),
                "priced": priced.writeStream.format("parquet").option("path", "nowhere"),
            }
        """,
    )
    pytester.makepyfile(
        """
        import os

        import pytest
        from ottla.errors import OttlaError

        def counts(rows):
            return {row.drink: row["count"] for row in rows}

        def test_two_runs(run_queries):
            first = run_queries("job.py", {"orders": [("ada", "coffee"), "coffee"]})
            assert counts(first["all"]) == counts(first["changed"]) == {"coffee": 2}
            assert sorted((row.name, row.price) for row in first["priced"] if row.name) == [("ada", 3)]
            second = run_queries("job.py", {"orders": ["coffee"]})
            assert counts(second["all"]) == {"coffee": 3}
            assert len(second["priced"]) == 1
            assert not os.path.exists("nowhere")
            with pytest.raises(OttlaError, match="job.py: no query reads ordres") as unread:
                run_queries("job.py", {"orders": [], "ordres": ["coffee"]})
            assert "the topics that are read: orders" in str(unread.value)

        def test_a_failure(run_queries):
            with pytest.raises(OttlaError, match="job.py: query priced: KeyError: 'tea'") as failed:
                run_queries("job.py", {"orders": ["tea"]})
            assert "job.py:4, in price" in str(failed.value)
            with pytest.raises(OttlaError, match="nothing.py does not exist"):
                run_queries("nothing.py", {})
        """
    )
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=2)
