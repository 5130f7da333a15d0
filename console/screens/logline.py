"""An engine's event as a line of the log view: batch lines drawn as columns, everything else as it came."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from console.plain import one_line
from console.widgets.logview import LogLine
