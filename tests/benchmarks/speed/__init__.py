"""What it reaches beside limits and peers: `python -m tests.benchmarks.speed`. See docs/performance.md.

Each contestant is a process of its own (`ours`, `limit`, `grain`), which prints one JSON line for a workload; `run` starts
them and looks after memory and foreign load, `table` makes one table of all.
"""
