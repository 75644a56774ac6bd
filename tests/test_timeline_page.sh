#!/usr/bin/env bash
# The pages of quipu trace and quipu schedule run in a browser, without an error and with their sums.
# Skipped where there is no Chromium.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
export PYTHONPATH=$here${PYTHONPATH:+:$PYTHONPATH}
quipu=${QUIPU_BINARY:-$(dirname "$0")/../build/quipu}
browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome || true)
if [ -z "$browser" ]; then
    echo "skipped: there is no Chromium"
    exit 77
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# look PAGE EXPECTED...: after its script has run, the page contains every text.
look() {
    local page=$1 dom
    shift
    dom=$(timeout 120 "$browser" --headless=new --no-sandbox --disable-gpu --user-data-dir="$folder/b" \
        --enable-logging=stderr --virtual-time-budget=2000 --dump-dom "file://$page" 2>"$folder/log")
    if grep CONSOLE "$folder/log"; then
        echo "$page: the script complains"
        exit 1
    fi
    for text in "$@"; do
        if ! grep -qF -- "$text" <<<"$dom"; then
            echo "$page: no $text"
            exit 1
        fi
    done
}

"$quipu" trace -m synthetic:tiny --ids 1,2,3 -n 4 -t 2 --html "$folder/trace.html"
look "$folder/trace.html" "<h1 id=\"title\">synthetic:tiny</h1>" "<th>measured µs</th>" \
    "<tr class=\"all\"><td>pass</td>" "pass 3: 1 token, then 6 positions"
"$quipu" schedule -m synthetic:tiny --workers 132 --html "$folder/schedule.html" >/dev/null
look "$folder/schedule.html" "<th>planned µs</th>" "<tr class=\"all\"><td>pass</td>"

# What a person does there: a search whose sums are shown, and a page of another trace beside this one.
# do PAGE SCRIPT: the page with a script at its end.
do_there() {
    python3 - "$@" <<'END'
import sys
page, out, script = sys.argv[1:4]
text = open(page, encoding="utf-8").read()
if len(sys.argv) > 4:  # a page to compare with, as the script's text `other`
    import json
    other = json.dumps(open(sys.argv[4], encoding="utf-8").read()).replace("<", "\\u003c")
    script = "const text = " + other + ";" + script
open(out, "w", encoding="utf-8").write(text.replace("</body>", "<script>" + script + "</script></body>"))
END
}

# On a phone nothing but tables is wider than the window, two fingers zoom, and a tap shows a note.
python3 - "$folder/trace.html" <<'END'
import sys
from chromium import Browser
browser = Browser(360, 780)
browser.look(360, 780, False)
browser.call("Emulation.setTouchEmulationEnabled", enabled=True, maxTouchPoints=2)
browser.open("file://" + sys.argv[1])

def touch(kind, *points):
    browser.call("Input.dispatchTouchEvent", type=kind, touchPoints=[{"x": x, "y": y, "id": i} for i, (x, y) in enumerate(points)])

y = browser.run("canvas.getBoundingClientRect().top + layout()[1].tracks + 5")
assert browser.run("document.documentElement.scrollWidth") == 360, "the page is wider than a phone"
assert browser.run("document.querySelector('.mouse').offsetParent") is None, "the hint speaks of a wheel"
before = browser.run("view.scale")
touch("touchStart", (150, y))
touch("touchStart", (150, y), (200, y))
for k in range(1, 8):
    touch("touchMove", (150 - 8 * k, y), (200 + 8 * k, y))
touch("touchEnd")
assert browser.run("view.scale") < before / 2, "two fingers do not zoom"
browser.run("showAll()")
x = browser.run("(() => { const p = layout()[1].panel; return (x(p.work[0]) + x(p.signal[0])) / 2; })()")
touch("touchStart", (x, y))
touch("touchEnd")
assert browser.until("!element('tip').hidden", 10), "a tap shows no note"
assert not browser.problems, browser.problems
browser.close()
END

"$quipu" trace -m synthetic:tiny --ids 1,2,3 -n 3 --exec serial --tracks 3 --html "$folder/parts.html"
look "$folder/parts.html" "RepeatKV" "ElementwiseExp" "operators cut in 3 chunks"
do_there "$folder/parts.html" "$folder/search.html" \
    'element("search").value = "layers.1.self_attn.q_proj"; search(); findNext();'
look "$folder/search.html" "3 of " '3 slices with "layers.1.self_attn.q_proj"' "sums of the whole pass"
"$quipu" trace -m synthetic:tiny --ids 1,2,3 -n 3 -t 1 --html "$folder/before.html"
do_there "$folder/trace.html" "$folder/compared.html" \
    'compare(text); element("arrows").click(); view.selection = [0, span()]; showSums(); draw();' \
    "$folder/before.html"
look "$folder/compared.html" "<th>before µs</th>" "<th>after µs</th>" "<th>change</th>" "before: latency, rr, 1 worker"
