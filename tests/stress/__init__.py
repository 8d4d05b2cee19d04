"""What many processes, and crashes at any moment, do to a table: `race` and `kill`, in small by default.

``LAKEHOUSE_STRESS=1`` runs them at full size.
"""

from __future__ import annotations

import os

FULL = os.environ.get("LAKEHOUSE_STRESS") == "1"
