"""Fewer examples on the uncompiled source, which is slow, and which the run of the compiled modules has tested already."""

from __future__ import annotations

import os

import hypothesis

if os.environ.get("OTTLA_RECORDS") == "python":
    loaded = hypothesis.settings.default
    hypothesis.settings.register_profile("uncompiled", loaded, max_examples=min(20, loaded.max_examples))
    hypothesis.settings.load_profile("uncompiled")
