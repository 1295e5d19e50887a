"""Views of measurements and of plans: each function takes data and returns a table with a picture.

Pictures are static SVG of our own, as those of graphs, rooflines and bars are: a few kilobytes that follow the
notebook's theme and work offline, where Altair and Plotly bring megabytes of script or load it from a network.
"""

from fuser_lab.lab.views.frontier import Frontier, FrontierRow, frontier, peak_memory
from fuser_lab.lab.views.heat_map import HeatMap, heat_map
from fuser_lab.lab.views.history import History, HistoryRow, history
from fuser_lab.lab.views.orders import (
    MemoryOrder,
    MemoryOrders,
    OrderedPlan,
    OrderSensitivity,
    memory_orders,
    order_sensitivity,
)
from fuser_lab.lab.views.regressions import Regression, Regressions, regressions
from fuser_lab.report.view import View

__all__ = [
    "Frontier", "FrontierRow", "HeatMap", "History", "HistoryRow", "MemoryOrder", "MemoryOrders", "OrderSensitivity",
    "OrderedPlan", "Regression", "Regressions", "View", "frontier", "heat_map", "history", "memory_orders",
    "order_sensitivity", "peak_memory", "regressions",
]
