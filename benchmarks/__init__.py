"""Workloads of the SGLang paper as palmette programs, and what measures them: `palmette bench`.

A workload (w01_mmlu.py ...) says what its programs are and makes their arguments, from recorded data or by a seeded
synthetic copy of their shape. `measure` runs one on an engine of its own through a `Recorder`, and says beside the
clock's numbers those that no clock has a say in: tokens, forward calls, and the hit rate against the best that any
cache could reach.
"""
