#!/usr/bin/env python3
"""The server's page in a headless Chromium: a scripted conversation, what is sent and kept, the engine's
panel, a narrow window. Skipped where there is no Chromium. Pictures go to QUIPU_PICTURES if that is set.
Ends with "N passed, N failed"."""
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from chromium import CHROMIUM, Browser  # noqa: E402
from fake_server import FakeServer  # noqa: E402

PAGE = Path(__file__).resolve().parent.parent / "src" / "server" / "page"
ENGINE = {
    "time": 1.0, "slots": 4, "pages": {"size": 16, "total": 100, "used": 20, "cached": 10},
    "queue": {"running": 2, "waiting": 1}, "totals": {"generated_tokens": 10, "last_ttft_ms": 12.4},
    "sequences": [
        {"id": 7, "choice": 0, "state": "decoding", "prompt_tokens": 90, "cached_tokens": 48, "positions": 100,
         "generated": 10, "max_tokens": 20, "pages": 7, "node": 2},
        {"id": 8, "choice": 1, "state": "waiting", "prompt_tokens": 9, "cached_tokens": 0, "positions": 0,
         "generated": 0, "max_tokens": 20, "pages": 0, "node": 0}],
    "tree": [{"id": 1, "parent": 0, "tokens": 32, "pages": 2, "users": 1},
             {"id": 2, "parent": 1, "tokens": 16, "pages": 1, "users": 1},
             {"id": 3, "parent": 1, "tokens": 48, "pages": 3, "users": 0}],
    "passes": [{"ms": 3.0, "prompt_tokens": 64, "decode_tokens": 2, "sequences": 3},
               {"ms": 1.5, "prompt_tokens": 0, "decode_tokens": 2, "sequences": 2}],
}
passed = failed = 0


def check(name, ok, told=""):
    global passed, failed
    passed, failed = passed + bool(ok), failed + (not ok)
    if not ok:
        print(f"failed: {name}: {told}")


def picture(browser, name):
    if os.environ.get("QUIPU_PICTURES"):
        browser.picture(os.path.join(os.environ["QUIPU_PICTURES"], name + ".png"))


def say(browser, text):
    browser.run(f"$('input').value = {text!r}; $('form').requestSubmit()")


def answered(browser, messages):
    return browser.until(f"running === null && current.messages.length === {messages}")


def click(browser, label, nth=-1):
    browser.run(f"[...document.querySelectorAll('.foot button')].filter((b) => b.textContent === {label!r}).at({nth}).click()")


def contents(browser):
    return browser.run("current.messages.map((m) => m.role + ': ' + m.content)")


def test_conversation(browser, server):
    say(browser, "one <b>two</b>")
    check("an answer", answered(browser, 2) and contents(browser)[1].startswith("assistant:  x x"), contents(browser))
    check("text is not markup", browser.run("document.querySelector('.user .text').textContent") == "one <b>two</b>" and
          browser.run("document.querySelectorAll('.text b').length") == 0)
    check("statistics", "first after" in browser.run("document.querySelector('.assistant .foot').textContent"))
    say(browser, "three")
    answered(browser, 4)
    asked = server.requests[-1][3]
    check("the whole conversation is sent", [m["role"] for m in asked["messages"]] == ["user", "assistant", "user"], asked)
    likely = {name: server.defaults[name] for name in ("temperature", "top_k", "top_p", "min_p")}
    check("the server's defaults are", likely.items() <= asked.items(), asked)
    check("nothing else is", set(asked) - set(likely) == {"model", "messages", "stream", "stream_options", "return_progress"}, asked)
    click(browser, "Regenerate")
    answered(browser, 4)
    check("regenerated", len(server.requests) == 3 and server.requests[-1][3]["messages"] == asked["messages"])
    click(browser, "Edit", 0)
    browser.run("document.querySelector('.edit').value = 'other'")
    click(browser, "Send")
    check("edited", answered(browser, 2) and contents(browser)[0] == "user: other", contents(browser))


def test_settings(browser, server):
    browser.run("openSettings(); const form = document.querySelector('#settings form').elements;"
                "form.temperature.value = 0.5; form.system.value = 'Be short.'; form.stop.value = 'END';"
                "form.key.value = 'secret'; form.max_tokens.value = 8; $('settings').close()")
    browser.until("settings.temperature === '0.5'")
    say(browser, "four")
    answered(browser, 4)
    _, _, headers, asked = server.requests[-1]
    shown = browser.run("['top_k', 'seed', 'max_tokens'].map((name) => form[name].placeholder)")
    check("defaults are shown", shown == ["40", "", ""], shown)
    check("settings are sent", asked["temperature"] == 0.5 and asked["top_k"] == 40 and asked["stop"] == ["END"] and asked["max_tokens"] == 8 and
          asked["messages"][0] == {"role": "system", "content": "Be short."}, asked)
    check("the key is sent", headers.get("Authorization") == "Bearer secret", headers)


def test_stop_and_failure(browser, server):
    server.model, server.first_ms = "slow", 400  # so that a busy machine too draws a frame before the first token
    browser.run("model = 'slow'; settings.max_tokens = '400'; window.seen = [];"
                "new MutationObserver(() => seen.push($('messages').textContent)).observe($('messages'), { childList: true, subtree: true })")
    say(browser, "five")
    browser.until("current.messages.at(-1).content.length > 10")
    picture(browser, "answering")
    check("how much of the prompt is read", browser.run("seen.some((t) => t.includes('reading: 9 of 17 tokens'))"))
    check("then no more", "reading" not in browser.run("$('messages').textContent"))
    browser.run("$('stop').click()")
    check("stopped", answered(browser, 6) and browser.run("current.messages.at(-1).stopped") and
          len(contents(browser)[-1]) < 400, contents(browser))
    browser.run("model = 'error'; settings.max_tokens = '8'")
    say(browser, "six")
    answered(browser, 8)
    check("an error in the stream", "pages ran out" in browser.run("document.querySelector('.failure').textContent"))
    browser.run("model = 'refuse'")
    say(browser, "seven")
    answered(browser, 10)
    check("a refusal", "the queue is full" in browser.run("[...document.querySelectorAll('.failure')].at(-1).textContent"))
    browser.problems = [p for p in browser.problems if "429" not in p]  # Chromium's own note of it


def test_kept(browser, server):
    before = contents(browser)
    browser.open(server.url + "/page.html")
    browser.until("model !== ''")
    check("kept over a reload", contents(browser) == before and browser.run("settings.system") == "Be short.")
    browser.run("$('new').click()")
    check("a new conversation", contents(browser) == [] and browser.run("$('empty').hidden") is False)
    browser.run("$('conversations').selectedIndex = 1; $('conversations').dispatchEvent(new Event('change'))")
    check("and back", contents(browser) == before)
    browser.run("$('delete').click()")
    check("deleted", contents(browser) == [] and browser.run("localStorage['quipu.conversations']") == "[]")


def test_key(browser, server):
    server.key = "sesame"
    browser.run("settings.key = ''; store.write('settings', settings)")
    browser.open(server.url + "/page.html")
    check("a key is asked for", browser.until("$('settings').open && document.activeElement.name === 'key'") and
          browser.run("$('settings-note').textContent") == "This server needs an API key.")
    browser.run("document.activeElement.value = 'sesame'; $('settings').close()")
    check("with it there is a model", browser.until(f"model === {server.model!r}"))
    browser.problems = [p for p in browser.problems if "401" not in p]  # Chromium's own note of it
    server.key = None


def test_markdown(browser):
    rows = {"a **b** `c` *d*": "<p>a <strong>b</strong> <code>c</code> <em>d</em></p>",
            "```c\n<x> *y*\n```\nz": "<pre><code>&lt;x&gt; *y*</code></pre><p>z</p>",
            "```\nopen": "<pre><code>open</code></pre>",
            "# T\n- a\n- b\n\n3. c\n4. d": '<h3>T</h3><ul><li>a</li><li>b</li></ul><ol start="3"><li>c</li><li>d</li></ol>',
            "> q\nr": "<blockquote>q</blockquote><p>r</p>", "2 * 3 * 4 ** 5": "<p>2 * 3 * 4 ** 5</p>",
            "<img src=x onerror=alert(1)>": "<p>&lt;img src=x onerror=alert(1)&gt;</p>", "a\nb": "<p>a<br>b</p>"}
    for text, html in rows.items():
        made = browser.run(f"(() => {{ const d = document.createElement('div'); d.append(...markdown({text!r})); return d.innerHTML; }})()")
        check(text, made == html, made)


def test_engine(browser):
    browser.until("document.querySelectorAll('.sequence').length === 2")
    shown = browser.run("[...document.querySelectorAll('#figures div')].map((d) => d.lastChild.textContent + ' ' + d.firstChild.textContent)")
    check("figures", shown == ["0.0 tokens/s", "12 ms to first", "2 running", "1 waiting"], shown)
    check("pages", "20 in use" in browser.run("$('pages-legend').textContent") and "70 free" in browser.run("$('pages-legend').textContent"))
    check("a knot for each page", browser.run("document.querySelectorAll('.knot').length") == 2 + 1 + 3 + 4)
    check("passes", browser.run("document.querySelectorAll('#passes g').length") == 2)


def test_timeline(browser, server):
    svg = b'<svg xmlns="http://www.w3.org/2000/svg" width="1200" height="90"><style>rect{fill:#a5482c}</style>' \
          b'<rect x="76" y="30" width="700" height="20"/></svg>'
    server.pictures = {"/timeline": ("image/svg+xml", svg), "/timeline.html": ("text/html", b"<!DOCTYPE html><p>a page")}
    server.idle = 2
    browser.run("$('timeline-open').click()")
    check("waits for a pass", "ask the model" in browser.run("$('timeline-note').textContent"))
    check("the picture", browser.until("$('timeline-picture').complete && $('timeline-picture').naturalWidth === 1200") and
          browser.run("$('timeline-note').hidden"))
    picture(browser, "timeline")
    server.idle = 1
    browser.run("$('timeline-frame').hidden = true; $('timeline-again').click()")
    check("another", browser.until("!$('timeline-frame').hidden"))
    browser.run("window.saved = []; HTMLAnchorElement.prototype.click = function () { saved.push(this.download + ' ' + this.href); };"
                "$('timeline-save').click()")
    check("saved as a page", browser.until("saved.length === 1") and
          browser.run("saved[0]").startswith("timeline.html blob:"), browser.run("saved"))
    server.pictures = {}
    browser.run("$('timeline-again').click()")
    check("a refusal is shown", browser.until("$('timeline-note').textContent.includes('there is no /timeline')"))
    browser.run("$('timeline').close()")
    browser.problems = [p for p in browser.problems if "503" not in p and "404" not in p]  # Chromium's own notes


def test_looks(browser, server):
    for width, height in ((1400, 900), (390, 800)):
        for dark in (False, True):
            browser.look(width, height, dark)
            browser.run("document.body.classList.remove('engine')")
            sideways = browser.run("document.documentElement.scrollWidth > innerWidth")
            check(f"nothing stands out at the side, {width} px", not sideways)
            picture(browser, f"chat_{width}_{'dark' if dark else 'light'}")
            if width == 390:
                browser.run("$('engine-toggle').click()")
                check("the engine on a narrow window", browser.run("$('engine').offsetParent !== null && $('chat').offsetParent === null"))
                picture(browser, f"engine_{width}_{'dark' if dark else 'light'}")
                browser.run("$('engine-toggle').click()")


def main():
    if not CHROMIUM:
        print("skipped: there is no Chromium")
        return 77
    server = FakeServer(folder=PAGE, engine=ENGINE)
    browser = Browser()
    try:
        browser.look(1400, 900, False)
        browser.open(server.url + "/page.html")
        check("the model's name", browser.until("model === 'plain' && $('model').textContent === model"))
        test_conversation(browser, server)
        test_settings(browser, server)
        test_stop_and_failure(browser, server)
        test_markdown(browser)
        test_engine(browser)
        test_timeline(browser, server)
        test_looks(browser, server)
        test_kept(browser, server)
        test_key(browser, server)
        check("no errors in the console", not browser.problems, browser.problems)
    finally:
        browser.close()
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


sys.exit(main())
