"""What fits into one multi, compared with what kazoo sends."""

from __future__ import annotations

from kazoo.protocol import serialization
from kazoo.security import OPEN_ACL_UNSAFE

from ottla.zookeeper.multis import MULTI_BYTES, MULTI_OPERATIONS, parts, request_bytes
from ottla.zookeeper.operations import Check, Create, Delete, Multi, SetData


def sent(multi: Multi, chroot: str) -> int:
    """The bytes of the request that kazoo sends, with its number and type."""
    operations = []
    for operation in multi.operations:
        path = chroot + operation.path
        match operation:
            case Create(data=data):
                operations.append(serialization.Create(path, data, OPEN_ACL_UNSAFE, 1))
            case Delete(version=version):
                operations.append(serialization.Delete(path, version))
            case SetData(data=data, version=version):
                operations.append(serialization.SetData(path, data, version))
            case Check(version=version):
                operations.append(serialization.CheckVersion(path, version))
    return 8 + len(serialization.Transaction(operations).serialize())


def test_the_size_of_a_request_is_that_of_kazoo_or_a_little_more() -> None:
    creates = [Create(f"/cönsumers/{number}", b"owner" * number) for number in range(50)]
    assert request_bytes(Multi(tuple(creates)), "/chröot") == sent(Multi(tuple(creates)), "/chröot")
    multi = Multi((Check("/m"), Delete("/d", 3), SetData("/s", b"data"), *creates))
    assert sent(multi, "/c") < request_bytes(multi, "/c") < sent(multi, "/c") + 100


def test_parts_are_in_order_and_within_both_limits() -> None:
    assert list(parts(list[tuple[str, int]]())) == []
    for name, length in (("/short", MULTI_OPERATIONS), ("/" + "ä" * 1_000, MULTI_BYTES // 2_101)):
        found = list(parts([(name, number) for number in range(2 * length + 1)]))
        assert [len(part) for part in found] == [length, length, 1]
        assert [number for part in found for _, number in part] == list(range(2 * length + 1))
