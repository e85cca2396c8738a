"""Compiles the hot modules, and prepares the README for package indexes. All other metadata is in ``pyproject.toml``.

Without a C compiler the extensions are skipped, and the same source runs uncompiled (``ottla.records.COMPILED`` is ``False``).
"""

import os
import re
import sys
import tomllib
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

HERE = Path(__file__).parent
DECLARATIONS = [
    f"src/ottla/records/{name}.pxd"
    for name in (
        "accumulator",
        "arrow_input",
        "batch",
        "cdata",
        "input_columns",
        "input_rows",
        "murmur2",
        "producer_queues",
        "memory",
        "processor",
        "reader",
        "record",
        "rows",
        "varint",
    )
]
RECORDS = (
    "accumulator",
    "arrow_input",
    "batch",
    "cdata",
    "columns",
    "encode",
    "header_columns",
    "input_columns",
    "input_rows",
    "murmur2",
    "producer_queues",
    "reader",
    "record",
    "row_fingerprint",
    "rows",
)

OPTIMISE = [] if sys.platform == "win32" else ["-O3"]

LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|#)([^)\s]+)\)")


def long_description() -> str:
    """Return the README with absolute links: relative ones, to docs and images, do not work on a package index."""
    project = tomllib.loads((HERE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    repository = project["urls"]["Repository"]

    def absolute(link: re.Match[str]) -> str:
        image, text, path = link.groups()
        return f"{image}[{text}]({repository}/{'raw' if image else 'blob'}/main/{path})"

    return LINK.sub(absolute, (HERE / "README.md").read_text(encoding="utf-8"))


extensions = [
    Extension(f"ottla.records.{name}", [f"src/ottla/records/{name}.py"], extra_compile_args=OPTIMISE, depends=DECLARATIONS)
    for name in RECORDS
]

modules = cythonize(extensions, language_level=3, include_path=["src"])
for module in modules:
    module.optional = True  # not in Extension(): cythonize() creates new extensions without it

setup(
    ext_modules=modules,
    long_description=long_description(),
    long_description_content_type="text/markdown",
    options={"build_ext": {"parallel": os.cpu_count()}},  # the modules take two minutes one after the other
)
