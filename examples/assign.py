#!/usr/bin/env python3
"""An assigner of one's own: list scheduling, the node with the longest path to the end first.

    python3 examples/assign.py synthetic:tiny 2 mine.schedule
    quipu run -m synthetic:tiny -p 1,2,3 -n 8 --schedule mine.schedule

quipu lists the instructions of a pass with their costs and dependencies; this program deals them into
queues; quipu proves that the queues are sound, and saves them. $QUIPU names the program.
"""
import json
import os
import subprocess
import sys
import tempfile


def assign(nodes, workers, signal_ns):
    """Queues of ids: each node goes to the worker that can begin it first."""
    queues, free, end = [[] for _ in range(workers)], [0.0] * workers, {}
    for node in sorted(nodes, key=lambda node: (-node["priority_ns"], node["id"])):
        ready = max((end[need] + signal_ns for need in node["needs"]), default=0.0)
        worker = min(range(workers), key=lambda w: max(free[w], ready))
        free[worker] = end[node["id"]] = max(free[worker], ready) + node["cost_ns"]
        queues[worker].append(node["id"])
    return queues


def main(model, workers, path):
    schedule = [os.environ.get("QUIPU", "quipu"), "schedule", "-m", model, "--workers", workers]
    listed = json.loads(subprocess.run([*schedule, "--linear", "--json"], check=True, capture_output=True).stdout)
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump({"queues": assign(listed["nodes"], int(workers), listed["signal_ns"])}, file)
        file.flush()
        return subprocess.run([*schedule, "--queues", file.name, "--save", path], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
