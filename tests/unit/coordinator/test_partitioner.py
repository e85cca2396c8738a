"""The partition of a group, as Java computes it."""

from __future__ import annotations

import pytest

from ottla.coordinator.runtime import partition_for


@pytest.mark.parametrize(
    ("group_id", "hash_code", "partition"),
    [
        ("", 0, 0),
        ("g", 103, 3),
        ("billing", -109829509, 9),
        ("console-consumer-12345", 158455506, 6),
        ("Ünïcödé-グループ", 557422286, 36),
        ("\N{GRINNING FACE}-group", -1198440043, 43),
        ("polygenelubricants", -(2**31), 0),
    ],
)
def test_the_partition_of_a_group_is_javas(group_id: str, hash_code: int, partition: int) -> None:
    """The hash codes are those that a JVM printed."""
    assert partition_for(group_id, 50) == partition
    if hash_code > -(2**31):
        assert partition_for(group_id, 2**31) == abs(hash_code)
