"""The first import of Daft, made quiet: it reports use to two outside hosts and warns on every unfiltered scan otherwise."""

from __future__ import annotations

import logging
import os

# Both of Daft's telemetry clients and the package-download one it carries; set only where the user has not decided.
OPT_OUTS = {"DO_NOT_TRACK": "1", "DAFT_ANALYTICS_ENABLED": "0", "SCARF_NO_ANALYTICS": "1"}

for _name, _value in OPT_OUTS.items():
    os.environ.setdefault(_name, _value)
logging.getLogger("pypaimon.daft.daft_datasource").setLevel(logging.ERROR)

import daft  # noqa: E402 - after the opt-outs
from daft.expressions import Expression  # noqa: E402

__all__ = ["OPT_OUTS", "Expression", "daft"]
