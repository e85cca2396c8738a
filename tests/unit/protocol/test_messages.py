"""The neutral messages and the stubs that describe them."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import typing
from pathlib import Path

import pytest

from ottla.protocol import messages, rpcs
from ottla.protocol.apis import SPOKEN, Api
from ottla.protocol.messages import load, message_class

ROOT = Path(__file__).parents[3]


def test_the_stubs_are_current() -> None:
    check = subprocess.run(
        [sys.executable, str(ROOT / "tools/make_message_stubs.py"), "--check"], capture_output=True, text=True, check=False
    )
    assert check.returncode == 0, check.stdout + check.stderr


def test_importing_the_names_loads_no_message() -> None:
    code = (
        "import sys; from ottla.protocol.messages import fetch_request, join_group_response;"
        "assert not [m for m in sys.modules if m.startswith(('kio.schema', 'kio.serial'))];"
        "fetch_request.FetchRequest; assert 'kio.schema.fetch.v18.request' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("api", [Api.PRODUCE, Api.FETCH, Api.OFFSET_COMMIT, Api.OFFSET_FETCH])
@pytest.mark.parametrize("side", ["request", "response"])
def test_where_ids_replaced_names_the_neutral_message_has_both(api: Api, side: str) -> None:
    names = [{field.name for field in dataclasses.fields(cls)} for cls in load(api, side).values()]
    assert any("topic_id" in fields and fields & {"name", "topic"} for fields in names)


def test_every_api_has_a_neutral_request_and_response() -> None:
    for api in SPOKEN:
        stem = "".join(part.capitalize() for part in api.name.split("_"))
        assert message_class(api, "request").__name__ == f"{stem}Request"
        assert message_class(api, "response").__name__ == f"{stem}Response"


def test_the_types_of_an_rpc_are_the_classes_that_the_codec_uses() -> None:
    for name, annotation in typing.get_type_hints(rpcs).items():
        api = getattr(rpcs, name).api
        assert api.name == name
        assert typing.get_args(annotation) == (message_class(api, "request"), message_class(api, "response"))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="vote_request"):
        messages.vote_request  # noqa: B018
    with pytest.raises(AttributeError, match="no message 'Nonsense'"):
        messages.fetch_request.Nonsense  # type: ignore[attr-defined]  # noqa: B018
