"""The version of this package, for those who must name it and may not know the rest of the package."""

__version__ = "0.1.0"
