"""A catalog server for tests: the part of the Paimon REST API that tables and training need, on loopback."""

from __future__ import annotations

from tests.rest.identity import Identity
from tests.rest.lake import Lake
from tests.rest.server import Fault, RestServer

__all__ = ["Fault", "Identity", "Lake", "RestServer"]
