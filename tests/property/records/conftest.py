"""Fewer examples on the uncompiled source, which is slow and which the compiled run has explored already."""

from __future__ import annotations

import os

import hypothesis

if os.environ.get("OTTLA_RECORDS") == "python":
    hypothesis.settings.register_profile("uncompiled", hypothesis.settings.default, max_examples=20)
    hypothesis.settings.load_profile("uncompiled")
