"""Miniature experiments of "An Image is Worth 16x16 Words", and which of the paper's claims they reproduce."""

from benchmarks.paper import (
    attention,
    compute,
    document,
    optimizers,
    pooling,
    positions,
    published,
    scaling,
    subset_size,
)
from benchmarks.paper.panel import Panel
from benchmarks.paper.running import count, hours_left, run, total_operations
from benchmarks.paper.statements import Statement
from benchmarks.paper.study import DATA_SETS, Stage, Study

PANELS = {
    module.PANEL.name: module.PANEL
    for module in (subset_size, compute, optimizers, scaling, pooling, positions, attention)
}

__all__ = [
    "DATA_SETS",
    "PANELS",
    "Panel",
    "Stage",
    "Statement",
    "Study",
    "count",
    "document",
    "hours_left",
    "published",
    "run",
    "total_operations",
]
