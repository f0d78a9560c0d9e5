"""The scheduler and the cache without a model: time comes from a cost model, requests from a trace.

trace = shared_prefix(10_000, rate=40)
cost = CostModel(SHAPES["llama-3-8b"], HARDWARE["h100"])
run = Simulation(cost, EngineSettings(policy="lpm", max_running=256)).run(trace)
print(report(run, best_possible(trace), cost))
"""

from __future__ import annotations

from palmette.runtime.simulator.cost import HARDWARE, SHAPES, CostModel, FixedCost, Hardware
from palmette.runtime.simulator.optimal import Optimum, Text, optimum
from palmette.runtime.simulator.report import Report, best_possible, report
from palmette.runtime.simulator.router import ROUTERS
from palmette.runtime.simulator.simulation import Run, Served, Simulation
from palmette.runtime.simulator.trace import Arrival, read_trace, write_trace
from palmette.runtime.simulator.workloads import WORKLOADS, Range, chat, independent, shared_prefix

__all__ = [
    "HARDWARE",
    "ROUTERS",
    "SHAPES",
    "WORKLOADS",
    "Arrival",
    "CostModel",
    "FixedCost",
    "Hardware",
    "Optimum",
    "Range",
    "Report",
    "Run",
    "Served",
    "Simulation",
    "Text",
    "best_possible",
    "chat",
    "independent",
    "optimum",
    "read_trace",
    "report",
    "shared_prefix",
    "write_trace",
]
