"""How Spark finds ``format("ottla")``: it imports every top-level module named ``pyspark_*`` and looks for ``DefaultSource``.

Must stay light, and must never raise: one such module that does hides the data sources of all the others.
"""

import logging

try:
    from ottla.spark.source import OttlaDataSource as DefaultSource
except Exception as error:
    logging.getLogger(__name__).warning("format('ottla') is not available: %s", error)
else:
    __all__ = ["DefaultSource"]
