"""The pytest plugin, in test sessions of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.long


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
