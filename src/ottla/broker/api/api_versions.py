"""ApiVersions (18): what this broker speaks, made from the table of what it serves."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ottla.broker.api.registry import serves
from ottla.broker.effects import Effect, Reply, RequestContext
from ottla.protocol import NO_THROTTLE, ErrorCode
from ottla.protocol.apis import ADVERTISED_MINIMUM, SPOKEN, Api, Fact
from ottla.protocol.messages import api_versions_request, api_versions_response
from ottla.types import Now

if TYPE_CHECKING:
    from ottla.broker.state import BrokerState

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?", re.ASCII)

METADATA_VERSION = 30
"""4.3-IV0: how clients tell the release that the versions here are those of."""
GROUP_VERSION = 1
"""The consumer group protocol (KIP-848) is in force."""

FEATURES = {
    "metadata.version": (7, METADATA_VERSION, METADATA_VERSION),
    "group.version": (0, GROUP_VERSION, GROUP_VERSION),
    "transaction.version": (0, 2, 2),
}
"""Feature -> the lowest and the highest level that are known, and the one in force. ``transaction.version`` 2 is KIP-890."""


@serves(Api.API_VERSIONS)
def api_versions(
    state: BrokerState, context: RequestContext, request: api_versions_request.ApiVersionsRequest, now: Now
) -> list[Effect]:
    """Everything that is served; INVALID_REQUEST for a client that names itself in a way that could not be logged."""
    # Versions before 3 do not carry a name; the protocol's default for it is empty.
    named = request.client_software_name or request.client_software_version
    if named and not all(map(_SOFTWARE.fullmatch, (request.client_software_name, request.client_software_version))):
        return [Reply(context.ticket, _response(ErrorCode.invalid_request, ()))]
    response = _response(
        ErrorCode.none,
        state.served,
        supported_features=tuple(
            api_versions_response.SupportedFeatureKey(name=name, min_version=low, max_version=high)
            for name, (low, high, _) in FEATURES.items()
            if low or Fact.ZERO_FEATURES in context.facts
        ),
        finalized_features_epoch=0,
        finalized_features=tuple(
            api_versions_response.FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
            for name, (_, _, level) in FEATURES.items()
            if level
        ),
    )
    return [Reply(context.ticket, response)]


def unsupported_version() -> api_versions_response.ApiVersionsResponse:
    """The answer, in version 0, to an ApiVersions request in a version that is not known: the range of this API alone."""
    return _response(ErrorCode.unsupported_version, (Api.API_VERSIONS,))


def _response(code: ErrorCode, apis: tuple[Api, ...], **features: object) -> api_versions_response.ApiVersionsResponse:
    keys = tuple(
        api_versions_response.ApiVersion(
            api_key=int(api),
            min_version=ADVERTISED_MINIMUM.get(api, SPOKEN[api].minimum),
            max_version=SPOKEN[api].maximum,
        )
        for api in apis
    )
    return api_versions_response.ApiVersionsResponse(
        error_code=code,
        api_keys=keys,
        throttle_time=NO_THROTTLE,
        **features,  # type: ignore[arg-type]
    )
