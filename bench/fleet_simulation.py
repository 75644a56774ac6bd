#!/usr/bin/env python3
"""Fleets of 1 to 1,000 servers under recorded traffic, as `quipu load --simulate` computes them: each with as many
copies of the trace as it has servers, under each of the router's rules.

    fleet_simulation.py run --traces DIR    writes doc/fleet-simulation.tsv (some minutes)
    fleet_simulation.py draw                doc/fleet-simulation.svg from it

DIR has the files that TRACES names."""
import argparse
import json
import math
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TABLE, PICTURE = ROOT / "doc" / "fleet-simulation.tsv", ROOT / "doc" / "fleet-simulation.svg"
COSTS = ROOT / "bench" / "costs" / "h200-llama-3.2-1b-bf16.csv"
SERVERS = [1, 3, 10, 30, 100, 300, 1000]
RULES = {"round_robin": "#b45309", "power_of_two": "#2563eb", "cache_aware": "#047857"}
TRACES = {  # a file, and options: ten minutes of the trace at a pace that loads a server well
    # github.com/Azure/AzurePublicDataset, data/
    "Azure": ("AzureLLMInferenceTrace_conv.csv", ["--speed", "16", "--duration", "37.5", "--slo", "ttft:25,tpot:2"]),
    # github.com/kvcache-ai/Mooncake, FAST25-release/traces/
    "Mooncake": ("conversation_trace.jsonl", ["--speed", "1.5", "--duration", "400", "--slo", "ttft:1000,tpot:20"]),
}
COLUMNS = ["trace", "servers", "rule", "requests", "ttft_p50_ms", "ttft_p99_ms", "tpot_p50_ms", "within_limits", "cached"]


def figures(traces, trace, servers, rule):
    """A row of the table."""
    binary = Path(os.environ.get("QUIPU_BINARY", "build/quipu")).absolute()
    file, options = TRACES[trace]
    command = [binary, "load", "--simulate", COSTS, "--replay", Path(traces) / file, *options, "--kv-positions", "3500000",
               "--servers", str(servers), "--copies", str(servers), "--router", rule, "--json"]
    f = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    share = f["request_goodput"] / f["request_throughput"]
    return [trace, str(servers), rule, str(int(f["completed"])), *(f"{f[name]:.2f}" for name in ("p50_ttft_ms", "p99_ttft_ms", "p50_tpot_ms")),
            f"{share:.4f}", f"{f['total_cached_tokens'] / f['total_input_tokens']:.4f}"]


def run(traces):
    rows = [figures(traces, trace, servers, rule) for trace in TRACES for servers in SERVERS for rule in RULES]
    TABLE.write_text("".join("\t".join(row) + "\n" for row in [COLUMNS, *rows]))


def read():
    lines = [line.split("\t") for line in TABLE.read_text().splitlines()]
    return [dict(zip(lines[0], line)) for line in lines[1:]]


WIDTH, HEIGHT, LEFT, TOP = 330, 190, 70, 60  # of a panel, and of the first one's corner
STEP_X, STEP_Y = WIDTH + 90, HEIGHT + 80


class Panel:
    """Axes: servers from 1 to 1,000 on a scale of powers, and a value."""

    def __init__(self, out, column, row, title, low, high, powers):
        self.out, self.x, self.y, self.low, self.high, self.powers = out, LEFT + column * STEP_X, TOP + row * STEP_Y, low, high, powers
        text(out, self.x, self.y - 10, title, weight="bold")
        out.append(f'<rect x="{self.x}" y="{self.y}" width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#888"/>')
        for servers in (1, 10, 100, 1000):
            self.line(self.at(servers, low), self.at(servers, high))
            text(out, self.at(servers, low)[0], self.y + HEIGHT + 16, f"{servers:,}", "middle")
        text(out, self.x + WIDTH, self.y + HEIGHT + 32, "servers", "end")
        ticks = [10 ** k for k in range(round(math.log10(low)), round(math.log10(high)) + 1)] if powers else [20, 40, 60, 80, 100]
        for tick in ticks:
            self.line(self.at(1, tick), self.at(1000, tick))
            text(out, self.x - 6, self.at(1, tick)[1] + 4, f"{tick:,}", "end")

    def at(self, servers, value):
        scale = math.log10 if self.powers else float
        part = (scale(value) - scale(self.low)) / (scale(self.high) - scale(self.low))
        return self.x + WIDTH * math.log10(servers) / 3, self.y + HEIGHT * (1 - part)

    def line(self, a, b):
        self.out.append(f'<path d="M{a[0]:.1f},{a[1]:.1f}L{b[0]:.1f},{b[1]:.1f}" stroke="#ddd"/>')

    def curve(self, points, colour, dashes=""):
        d = "L".join(f"{x:.1f},{y:.1f}" for x, y in (self.at(*point) for point in points))
        self.out.append(f'<path d="M{d}" fill="none" stroke="{colour}" stroke-width="2"{dashes}/>')


def text(out, x, y, what, anchor="start", weight="normal", colour="#222"):
    out.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}" fill="{colour}">{what}</text>')


def picture(rows):
    width, height = LEFT + 2 * STEP_X, TOP + 2 * STEP_Y
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
           f'<rect width="{width}" height="{height}" fill="white"/>']
    for i, (rule, colour) in enumerate(RULES.items()):
        text(out, LEFT + 120 * i, 22, "━ " + rule, weight="bold", colour=colour)
    text(out, LEFT + 380, 22, "left: median; dashed: the slowest 1%")
    for row, trace in enumerate(TRACES):
        of = [r for r in rows if r["trace"] == trace]
        most = max(float(r["ttft_p99_ms"]) for r in of)
        first = Panel(out, 0, row, f"{trace}: time to the first token, ms", 1 if most < 1000 else 10, 10 ** math.ceil(math.log10(most)), True)
        good = Panel(out, 1, row, f"{trace}: requests within {TRACES[trace][1][-1].replace(',', ' ms, ')} ms, %", 0, 100, False)
        for rule, colour in RULES.items():
            mine = [(int(r["servers"]), r) for r in of if r["rule"] == rule]
            first.curve([(n, float(r["ttft_p50_ms"])) for n, r in mine], colour)
            first.curve([(n, float(r["ttft_p99_ms"])) for n, r in mine], colour, ' stroke-dasharray="4 3"')
            good.curve([(n, 100 * float(r["within_limits"])) for n, r in mine], colour)
    return "\n".join([*out, "</svg>\n"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["run", "draw"])
    parser.add_argument("--traces", help="the folder of the traces")
    arguments = parser.parse_args()
    if arguments.what == "run":
        if not arguments.traces:
            parser.error("run needs --traces DIR")
        run(arguments.traces)
    PICTURE.write_text(picture(read()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
