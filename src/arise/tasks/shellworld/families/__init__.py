"""All families, in the order in which draws see them."""

from __future__ import annotations

from arise.tasks.shellworld.families import plain, recovery, search, tools
from arise.tasks.shellworld.families.base import Family

FAMILIES: tuple[Family, ...] = (
    *plain.FAMILIES,
    *search.FAMILIES,
    *tools.FAMILIES,
    *recovery.FAMILIES,
)

__all__ = ["FAMILIES", "Family"]
