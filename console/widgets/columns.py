"""How wide the columns of a table are: by what stands in them, and where that is too much, the widest give way."""

from __future__ import annotations

from collections.abc import Sequence


def share(wanted: Sequence[int], room: int) -> list[int]:
    """The width of each column: what it wants while `room` cells are enough for all, else cut at one common width.

    So a column of short words keeps all of them whatever a long path beside it would take. No column is less than 1.
    """
    widths = [max(1, width) for width in wanted]
    while (over := sum(widths) - room) > 0 and max(widths) > 1:
        most = max(widths)
        widest = [index for index, width in enumerate(widths) if width == most]
        lower = max((width for width in widths if width < most), default=1)
        cut = min(len(widest) * (most - lower), over)
        each, rest = divmod(cut, len(widest))
        for place, index in enumerate(widest):
            widths[index] = max(1, most - each - (place >= len(widest) - rest))
    return widths
