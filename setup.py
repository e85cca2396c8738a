"""Builds the compiled twins of the hot modules; everything else about the package stands in ``pyproject.toml``.

Without a C compiler the extensions are left out and the same source runs as it stands (``ottla.records.COMPILED`` is then False).
"""

import sys

from Cython.Build import cythonize
from setuptools import Extension, setup

DECLARATIONS = [f"src/ottla/records/{name}.pxd" for name in ("batch", "cdata", "memory", "processor", "reader", "record", "rows")]
RECORDS = ("batch", "cdata", "columns", "encode", "header_columns", "reader", "record", "rows")

OPTIMISE = [] if sys.platform == "win32" else ["-O3"]

extensions = [
    Extension(f"ottla.records.{name}", [f"src/ottla/records/{name}.py"], extra_compile_args=OPTIMISE, depends=DECLARATIONS)
    for name in RECORDS
]

modules = cythonize(extensions, language_level=3, include_path=["src"])
for module in modules:
    module.optional = True  # said here, since cythonize() makes new extensions and forgets it

setup(ext_modules=modules)
