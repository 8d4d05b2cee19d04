"""Training sets by name and version, kept in a table of the lake itself."""

from lakehouse.registry.sets import REGISTRY_TABLE, Registry, TrainingSet

__all__ = ["REGISTRY_TABLE", "Registry", "TrainingSet"]
