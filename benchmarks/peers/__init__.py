"""palmette and other engines on the same weights, in turns on one machine: `python -m palmette.benchmarks.peers`.

Every engine runs in a worker, a process of its own with an environment of its own (workers/), which gets the texts of a
workload and sends back figures. Workers take turns, so that whatever else the machine does meets them alike.
"""
