"""Objects that own threads and connections cannot be copied or pickled.

A copy of a consumer shared its network thread, and closed it when the copy was garbage: the consumer itself could not even commit.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ottla import Admin, AsyncConsumer, Broker, Consumer

NOWHERE = "127.0.0.1:1"


@pytest.fixture(params=[Consumer, AsyncConsumer, Admin, Broker])
def owner(request: pytest.FixtureRequest) -> Iterator[Any]:
    if request.param is Broker:
        with Broker() as broker:
            yield broker
    else:
        yield request.param(bootstrap_servers=NOWHERE)


@pytest.mark.parametrize("twin", [copy.copy, copy.deepcopy, pickle.dumps])
def test_copying_an_owner_of_threads_raises(owner: Any, twin: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError, match=f"{type(owner).__name__} cannot be copied or pickled: create one where it is used"):
        twin(owner)
