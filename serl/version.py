"""The version of the package; its only place."""

__version__ = "0.1.0"
