#!/usr/bin/env python3
"""The server's page in a headless Chromium: conversations, what is sent and kept, hostile answers and files, two
tabs, the engine's panel, narrow windows; and with a real server. Skipped where there is no Chromium. Pictures go to
QUIPU_PICTURES if that is set. Ends with "N passed, N failed"."""
import json
import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from chromium import CHROMIUM, Browser  # noqa: E402
from fake_server import FakeServer, libraries  # noqa: E402
from server_process import MODEL, Server  # noqa: E402

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
        print(f"failed: {name}: {str(told)[:1000]}")


def picture(browser, name):
    if os.environ.get("QUIPU_PICTURES"):
        browser.picture(os.path.join(os.environ["QUIPU_PICTURES"], name + ".png"))


def modules(browser):
    """What tests look at lives in modules."""
    browser.until("document.body.dataset.ready !== undefined")
    browser.run("Promise.all(['dom', 'chat', 'store', 'tree', 'markdown', 'settings', 'list', 'api'].map((name) =>"
                " import(new URL(`page/${name}.js`, location.origin + location.pathname)).then((m) => { window[name] = m; })))"
                ".then(() => { window.$ = dom.$; window.state = chat.state; window.model = api.server; })")


def open_page(browser, url):
    browser.open(url)
    modules(browser)


def say(browser, text):
    browser.run(f"$('input').value = {json.dumps(text)}; $('form').requestSubmit()")


def answered(browser, messages):
    return browser.until(f"state.running.size === 0 && tree.pathTo(state.current).length === {messages}")


def click(browser, label, nth=-1):
    """The nth button of messages with this label, once it is there and can be pressed."""
    browser.until(f"(() => {{ const found = [...document.querySelectorAll('#messages button')].filter((b) => (b.getAttribute('aria-label') ?? b.textContent) === {label!r})"
                  f".at({nth}); found?.click(); return found && !found.disabled; }})()")


def undo(browser):
    browser.until("!$('toast').hidden && $('toast').querySelector('button')")
    browser.run("$('toast').querySelector('button').click()")


def contents(browser):
    return browser.run("tree.pathTo(state.current).map((m) => m.role + ': ' + m.content)")


def kept(browser, kind="messages"):
    return browser.run(f"store.readAll({kind!r})")


def test_conversation(browser, server):
    say(browser, "one <b>two</b>")
    check("an answer", answered(browser, 2) and contents(browser)[1].startswith("assistant:  x x"), contents(browser))
    check("text is not markup", browser.run("document.querySelector('.user > .text').textContent") == "one <b>two</b>" and
          browser.run("document.querySelectorAll('.text b').length") == 0)
    check("statistics", "first after" in browser.run("document.querySelector('.assistant .foot').textContent"))
    say(browser, "three")
    answered(browser, 4)
    asked = server.requests[-1][3]
    check("the whole conversation is sent", [m["role"] for m in asked["messages"]] == ["user", "assistant", "user"], asked)
    likely = {name: server.defaults[name] for name in ("temperature", "top_k", "top_p", "min_p")}
    check("the server's defaults are", likely.items() <= asked.items(), asked)
    options = {"model", "messages", "stream", "stream_options", "timings_per_token", "return_progress"}
    check("nothing else is", set(asked) - set(likely) == options, asked)
    click(browser, "Regenerate")
    answered(browser, 4)
    check("regenerated", len(server.requests) == 3 and server.requests[-1][3]["messages"] == asked["messages"])
    check("beside the old answer", browser.run("document.querySelector('.branches').textContent") == "2/2" and len(kept(browser)) == 5)
    click(browser, "Earlier version")
    check("which can be shown", browser.until("document.querySelector('.branches')?.textContent === '1/2'"))
    click(browser, "Edit", 0)
    browser.run("document.querySelector('.edit').value = 'other'")
    click(browser, "Send")
    check("an edited question", answered(browser, 2) and contents(browser)[0] == "user: other", contents(browser))
    click(browser, "Earlier version", 0)
    check("the old branch is as it was", browser.until("tree.pathTo(state.current).length === 4") and contents(browser)[2] == "user: three")


def test_answers(browser, server):
    click(browser, "Edit")
    browser.run("document.querySelector('.edit').value = 'Better so'")
    click(browser, "Save")
    check("an edited answer", browser.until("tree.pathTo(state.current).at(-1).content === 'Better so'"))
    click(browser, "Continue")
    check("goes on", browser.until("state.running.size === 0 && tree.pathTo(state.current).at(-1).content.startsWith('Better so x')"), contents(browser))
    asked = server.requests[-1][3]
    check("as the server wants it", asked["continue_final_message"] is True and asked["add_generation_prompt"] is False and
          asked["messages"][-1] == {"role": "assistant", "content": "Better so"}, asked)
    messages = len(kept(browser))
    click(browser, "Delete from here on", -2)
    check("messages are deleted", answered(browser, 2) and browser.until(f"store.readAll('messages').then((all) => all.length < {messages})"))
    undo(browser)
    check("and come back", answered(browser, 4) and browser.until(f"store.readAll('messages').then((all) => all.length === {messages})"))
    server.thoughts, server.script = ["Let me ", "**think**."], ["Done."]
    browser.run("model.model = 'script'")
    say(browser, "and why?")
    answered(browser, 6)
    check("thoughts are folded", browser.run("(({ open, lastChild }) => [open, lastChild.textContent.trim()])(document.querySelector('.thinking:not([hidden])'))") ==
          [False, "Let me think."])
    server.thoughts = []
    browser.run("model.model = 'plain'")


def test_files(browser, server):
    browser.run("import(new URL('page/compose.js', location.origin + location.pathname)).then(async ({ attach }) => attach(["
                "new File(['a = ```1```'], 'a.py'), new File([new Uint8Array([255, 254, 0])], 'b.png')]))")
    check("what is not text is refused", browser.until("$('toast').textContent.includes('b.png is not text in UTF-8')"))
    check("the other is attached", browser.run("[...$('files').children].map((f) => f.textContent)") == ["a.py"])
    say(browser, "What is it?")
    browser.until("state.running.size === 0")
    check("and sent in fences", server.requests[-1][3]["messages"][-1]["content"] == "a.py:\n````\na = ```1```\n````\n\nWhat is it?", server.requests[-1][3])
    check("and shown", browser.run("document.querySelector('.file summary').textContent").startswith("a.py (11 "))


def set_settings(browser, **values):
    """The dialog, filled in and done. If it is taken, the page asks for its model again."""
    browser.run("model.model = ''; $('settings-open').click();" + "".join(
        f"$('settings').querySelector('[name={name}]').value = {json.dumps(value)};" for name, value in values.items()) +
        "$('settings').querySelector('button.main').click()")
    browser.until("model.model !== '' || $('settings').open")


def test_settings(browser, server):
    set_settings(browser, temperature="0.5", system="Be short.", stop="END\nSTOP", key="secret", max_tokens="8", xtc_probability="0.1",
                 reasoning_effort="low", schema='{"type": "object"}', other='{"min_tokens": 2}')
    check("settings are kept", browser.until("store.readSetting('settings').then((s) => s?.temperature === '0.5')"))
    browser.run("$('new').click()")
    say(browser, "four")
    answered(browser, 2)
    _, _, headers, asked = server.requests[-1]
    browser.run("$('settings-open').click()")
    shown = browser.run("['top_k', 'seed', 'max_tokens'].map((name) => $('settings').querySelector(`[name=${name}]`).placeholder)")
    check("defaults are shown", shown == ["40", "", ""], shown)
    browser.run("$('settings-cancel').click()")
    wanted = {"temperature": 0.5, "top_k": 40, "stop": ["END", "STOP"], "max_tokens": 8, "xtc_probability": 0.1, "reasoning_effort": "low", "min_tokens": 2,
              "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": {"type": "object"}}}}
    check("settings are sent", wanted.items() <= asked.items() and asked["messages"][0] == {"role": "system", "content": "Be short."}, asked)
    check("the key is sent", headers.get("Authorization") == "Bearer secret", headers)
    set_settings(browser, schema='{"type": ')
    check("what is not JSON is not taken", "The JSON Schema is not JSON" in browser.run("$('settings-note').textContent") and
          browser.run("$('settings').open && settings.settings.schema") == '{"type": "object"}')
    browser.run("$('settings-cancel').click()")
    set_settings(browser, schema="", grammar='root ::= "a"', other="", reasoning_effort="", xtc_probability="")
    say(browser, "five")
    answered(browser, 4)
    asked = server.requests[-1][3]
    check("a grammar is sent", asked["grammar"] == 'root ::= "a"' and "response_format" not in asked, asked)
    set_settings(browser, grammar="")


def test_stop_and_failure(browser, server):
    browser.run("$('new').click()")
    server.model, server.held = "slow", True
    browser.run("model.model = 'slow'; settings.settings.max_tokens = '40000'")
    say(browser, "five")
    check("how much of the prompt is read", browser.until("$('messages').textContent.includes('reading: 9 of 17 tokens')"))
    server.held = False
    browser.until("tree.pathTo(state.current).at(-1).content.length > 10")
    picture(browser, "answering")
    check("then no more", browser.until("!$('messages').textContent.includes('reading')"))
    browser.run("$('stop').click()")
    check("stopped", answered(browser, 2) and browser.run("tree.pathTo(state.current).at(-1).stopped"), contents(browser))
    browser.run("model.model = 'error'; settings.settings.max_tokens = '8'")
    say(browser, "six")
    answered(browser, 4)
    check("an error in the stream", "pages ran out" in browser.run("[...document.querySelectorAll('.failure')].at(-1).textContent"))
    browser.run("model.model = 'cut'")
    say(browser, "cut")
    answered(browser, 6)
    check("a stream that is cut is not an answer", browser.run("[...document.querySelectorAll('.failure')].at(-1).textContent") != "")
    browser.run("model.model = 'refuse'")
    say(browser, "seven")
    answered(browser, 8)
    check("a refusal", "the queue is full" in browser.run("[...document.querySelectorAll('.failure')].at(-1).textContent"))
    browser.problems = [p for p in browser.problems if "429" not in p and "INCOMPLETE" not in p]  # Chromium's own notes


def test_reload(browser, server):
    """An answer under way is kept; others run on when another conversation is shown."""
    browser.run("$('new').click(); model.model = 'slow'; settings.settings.max_tokens = '40000'")
    say(browser, "a long one")
    browser.until("store.readAll('messages').then((all) => all.some((m) => m.conversation === state.current.record.id && m.role === 'assistant' && m.content.length > 40))")
    browser.run("$('new').click()")
    check("goes on out of sight", browser.run("state.running.size") == 1 and browser.until("document.querySelector('#list .dot')"))
    browser.run("history.back()")
    check("and is shown again", browser.until("document.querySelector('.waiting') && tree.pathTo(state.current).length === 2"))
    page = browser.run("location.href")
    open_page(browser, server.url + "/index.html")
    open_page(browser, page)
    check("a reload keeps it", contents(browser)[0] == "user: a long one" and len(contents(browser)[1]) > 30, contents(browser))
    check("and says that it is not finished", "not finished" in browser.run("document.querySelector('.statistics').textContent"))
    server.model = "plain"
    browser.run("model.model = 'plain'; settings.settings.max_tokens = '8'")
    click(browser, "Continue")
    check("and it can be continued", browser.until("state.running.size === 0 && tree.pathTo(state.current).at(-1).finish === 'length'"))


def test_list(browser, server):
    titles = "[...document.querySelectorAll('#list .title')].map((t) => t.textContent)"
    every = len(kept(browser, "conversations"))
    check("conversations are listed", browser.until(f"document.querySelectorAll('#list .title').length === {every}"), browser.run(titles))
    browser.run("$('search').value = 'THREE'; $('search').oninput()")
    check("found by what was said", browser.until(f"JSON.stringify({titles}) === JSON.stringify(['one <b>two</b>'])"), browser.run(titles))
    browser.run("$('list').querySelector('.title').click()")
    browser.until("$('list').querySelector('.current [aria-label=Rename]')")
    browser.run("$('list').querySelector('[aria-label=Rename]').click(); $('list').querySelector('input').value = 'Named';"
                "$('list').querySelector('input').blur()")
    check("renamed", browser.until(f"{titles}[0] === 'Named'"))
    browser.run("window.saved = []; const link = HTMLAnchorElement.prototype; link.real = link.click; URL.real = URL.createObjectURL;"
                "URL.createObjectURL = (blob) => (window.blob = blob.text(), URL.real(blob));"
                "link.click = function () { saved.push(blob.then((text) => [this.download, text])); }")
    browser.until("$('list').querySelector('.current [aria-label=Export]')")
    for label in ("Export", "Export as Markdown"):
        browser.run(f"$('list').querySelector('[aria-label=\"{label}\"]').click()")
    browser.until("saved.length === 2")
    (name, exported), (_, text) = browser.run("Promise.all(saved)")
    check("exported", name == "Named.json" and len(json.loads(exported)["conversations"][0]["messages"]) > 5 and text.startswith("# Named\n\n## User"), text)
    browser.run("link.click = link.real; URL.createObjectURL = URL.real")
    before = contents(browser)
    browser.run("$('list').querySelector('[aria-label=Delete]').click()")
    check("deleted", browser.until(f"store.readAll('conversations').then((all) => all.length === {every - 1})") and contents(browser) == [])
    undo(browser)
    check("and back", browser.until("tree.pathTo(state.current).length > 0") and contents(browser) == before)
    browser.run(f"list.importText({json.dumps(exported)})")
    check("imported beside it", browser.until(f"store.readAll('conversations').then((all) => all.length === {every + 1})") and
          browser.until(f"JSON.stringify(tree.pathTo(state.current).map((m) => m.role + ': ' + m.content)) === {json.dumps(json.dumps(before, separators=(',', ':'), ensure_ascii=False))}"), contents(browser))
    browser.run("$('search').value = ''; $('search').oninput()")
    test_damaged_files(browser, json.loads(exported))


def test_damaged_files(browser, sound):
    def damaged(change):
        copy = json.loads(json.dumps(sound))
        change(copy["conversations"][0])
        return json.dumps(copy)

    def set_message(**values):
        return lambda c: c["messages"][1].update(values)

    count = len(kept(browser, "conversations"))
    rows = {json.dumps(sound)[:-40]: "it is not JSON", "[]": "not a file of conversations", damaged(lambda c: c.pop("messages")): "has no list of messages",
            damaged(set_message(role="system")): 'message 2 has the role "system"', damaged(set_message(content=7)): 'message 2 has no text "content"',
            damaged(set_message(parent="nobody")): "follows a message that the file does not have", damaged(set_message(files=[{"name": 1}])): "files",
            damaged(lambda c: c["messages"].append(c["messages"][0])): "two messages with the same id",
            damaged(lambda c: c["messages"][0].update(parent=c["messages"][1]["id"])): "in a circle"}
    for text, told in rows.items():
        browser.run(f"$('toast').hidden = true; list.importText({json.dumps(text)})")
        browser.until("!$('toast').hidden")
        check("a damaged file: " + told, told in browser.run("$('toast').textContent"), browser.run("$('toast').textContent"))
    check("nothing of them is kept", len(kept(browser, "conversations")) == count)


def test_two_tabs(browser, server):
    """Each tab's conversations stay, and the other shows them."""
    browser.run("$('new').click()")
    other = browser.tab()
    open_page(other, server.url + "/")
    say(browser, "of the first tab")
    say(other, "of the second tab")
    answered(browser, 2), answered(other, 2)
    for tab in (browser, other):
        check("both are listed in both tabs", tab.until("['of the first tab', 'of the second tab'].every((t) => [...document.querySelectorAll('#list .title')].some((row) => row.textContent === t))"))
    open_page(other, browser.run("location.href"))
    say(browser, "more")
    answered(browser, 4)
    check("an open conversation follows", answered(other, 4), contents(other))
    check("no errors in the other tab", not other.problems, other.problems)
    other.close()


def test_key(browser, server):
    server.key = "sesame"
    browser.run("settings.replaceSettings({ ...settings.settings, key: '' })")
    open_page(browser, server.url + "/")
    check("a key is asked for", browser.until("$('settings').open && document.activeElement.name === 'key'") and
          browser.run("$('settings-note').textContent") == "This server needs an API key.")
    browser.run("document.activeElement.value = 'sesame'; $('settings').querySelector('button.main').click()")
    check("with it there is a model", browser.until(f"model.model === {server.model!r}"))
    browser.problems = [p for p in browser.problems if "401" not in p]  # Chromium's own note of it
    server.key = None


def test_models(browser, server):
    server.models, server.loading = ["first", "second"], 1
    open_page(browser, server.url + "/")
    check("models can be chosen, once loaded", browser.run("[...$('models').options].map((o) => o.value)") == ["first", "second"])
    browser.run("$('models').value = 'second'; $('models').onchange()")
    browser.until("model.model === 'second'")
    say(browser, "hello")
    answered(browser, 2)
    check("and are asked", server.requests[-1][3]["model"] == "second")
    server.models = None
    browser.problems = [p for p in browser.problems if "503" not in p]


def test_several_models(browser):
    """Before `quipu serve --models`: opening the page loads nothing, a question loads its model, and a model that cannot be loaded says why."""
    folder = Path(browser.folder.name) / "models"
    folder.mkdir()
    for name in ("one", "two"):
        (folder / (name + ".gguf")).symlink_to(MODEL)
    (folder / "broken.gguf").write_bytes(b"GGUF")
    with Server(model=None, models=folder) as server:
        def loaded():
            return [m["id"] for m in server.get("/v1/models")[1]["data"] if m["status"]["value"] != "unloaded"]

        open_page(browser, f"http://127.0.0.1:{server.port}/")
        check("all are there", browser.until("$('models').options.length === 3") and browser.run("[...$('models').options].map((o) => o.text)") == ["broken", "one", "two"])
        browser.run("$('models').value = 'two'; $('models').onchange()")
        browser.until("model.model === 'two'")
        check("none is loaded yet", loaded() == [], loaded())
        browser.run("settings.settings.max_tokens = '8'")
        say(browser, "hello")
        check("a question loads its model", answered(browser, 2) and browser.run("tree.pathTo(state.current)[1].finish !== undefined") and loaded() == ["two"],
              (browser.run("tree.pathTo(state.current)"), loaded()))
        check("which is shown", browser.until("$('models').selectedOptions[0].text === 'two (loaded)'"), browser.run("$('models').selectedOptions[0].text"))
        browser.run("$('engine-toggle').click()")
        check("and how much of it is used", browser.until("/^weights .*B, KV cache .*B, process .*B$/.test($('memory-text').textContent)") and
              browser.until("/^[1-9]\\d* of [1-9][\\d,]* positions in this conversation$/.test($('context-text').textContent)"), browser.run("$('engine').textContent"))
        browser.run("$('engine-toggle').click()")
        browser.run("$('models').value = 'broken'; $('models').onchange()")
        browser.until("model.model === 'broken'")
        say(browser, "hello")
        check("one that cannot be loaded says why", answered(browser, 4) and "broken was not loaded" in browser.run("tree.pathTo(state.current)[3].failure ?? ''"), browser.run("tree.pathTo(state.current)"))
    browser.problems = [p for p in browser.problems if "503" not in p]


def test_dying_server(browser):
    """A server that is killed within an answer, and one that comes back."""
    with Server(wait=True) as server:
        open_page(browser, f"http://127.0.0.1:{server.port}/")
        browser.until("model.model !== ''")
        browser.run("settings.settings.max_tokens = ''; settings.settings.other = '{\"ignore_eos\": true, \"n_predict\": 100000}'")
        browser.run("window.before = fetch; window.fetch = async (...a) => { const r = await before(...a); if (String(a[0]).includes('completions')) setTimeout(() => window.asked = true); return r; }")
        say(browser, "go on")
        browser.until("window.asked")
        os.kill(server.process.pid, signal.SIGSTOP)
        os.kill(server.process.pid, signal.SIGKILL)
        check("an answer that is cut says so", answered(browser, 2) and browser.run("(({ failure, finish }) => failure ?? finish)(tree.pathTo(state.current)[1])") in
              ("The connection ended before the answer did.", "length"), browser.run("tree.pathTo(state.current)[1]"))
    say(browser, "are you there?")
    check("a server that is gone, too", answered(browser, 4) and browser.run("tree.pathTo(state.current)[3].failure") == "The server does not answer.", browser.run("tree.pathTo(state.current)[3]"))
    browser.problems = []


def test_old_page(browser, server):
    """Conversations that an older page has left in localStorage."""
    browser.run("localStorage['quipu.conversations'] = JSON.stringify([{ id: 'a', messages: [{ role: 'user', content: 'of old' }, { role: 'assistant', content: 'yes' }] }, { id: 'b' }, null])")
    open_page(browser, server.url + "/")
    check("are taken over", browser.until("[...document.querySelectorAll('#list .title')].some((t) => t.textContent === 'of old')") and
          browser.run("localStorage.length") == 0)


MARKDOWN = {
    "a **b** `c` *d*": "<p>a <strong>b</strong> <code>c</code> <em>d</em></p>", "a\nb": "<p>a<br>b</p>",
    "# T\n- a\n- b\n\n3. c\n4. d": '<h2 class="depth-1">T</h2>|<ul><li>a</li><li>b</li></ul>|<ol start="3"><li>c</li><li>d</li></ol>',
    "2 * 3 * 4 ** 5, $5 and $6": "<p>2 * 3 * 4 ** 5, $5 and $6</p>",
    "[x](https://a.example/)": '<p><a href="https://a.example/" target="_blank" rel="noopener noreferrer">x</a></p>',
    "|a|\n|-:|\n|b|": '<div class="scroll" tabindex="0"><table><thead><tr><th align="right">a</th></tr></thead><tbody><tr><td align="right">b</td></tr></tbody></table></div>',
    # What could do something is text, or is not there.
    "<img src=x onerror=alert(1)>": "&lt;img src=x onerror=alert(1)&gt;", "<script>alert(1)</script>": "&lt;script&gt;alert(1)&lt;/script&gt;",
    "[x](javascript:alert(1))": "<p>x</p>", "[x](data:text/html,y)": "<p>x</p>", "a<br>b": "<p>a<br>b</p>",
    "![x](https://a.example/x.png)": '<p><a href="https://a.example/x.png" target="_blank" rel="noopener noreferrer">x</a></p>',
    "<b onclick=alert(1)>x": "<p>&lt;b onclick=alert(1)&gt;x</p>", "```a b<i>\nx": None, "[a]: javascript:b\n[a]": "<p>a</p>",
    "**open [x](": "<p>**open [x](</p>", "a" * 40: "<p>" + "a" * 40 + "</p>",
}


def rendered(browser, text, finished="true"):
    return browser.run("(() => { const box = document.createElement('div'); markdown.showMarkdown(box, " + json.dumps(text) + f", {finished});"
                       " return [...box.children].map((b) => b.innerHTML.replace(/>\\n/g, '>').replace(/\\n</g, '<')).join('|'); })()")


def test_markdown(browser):
    for text, html in MARKDOWN.items():
        made = rendered(browser, text)
        check(text, html is None or made == html, made)
    for text in ("```c\nint <x>;\n```", "```\nopen"):
        made = rendered(browser, text)
        check("code has a button", "Copy code" in made and ("c</span>" in made or "text</span>" in made) and "<x>" not in made, made)
    browser.run("document.body.append(Object.assign(document.createElement('div'), { id: 'try', hidden: true }));"
                r"markdown.showMarkdown($('try'), '```c\nint x = 1;\n```\n\n$x^2$ and \\(y\\)\n\n$$\n\\frac{1}{2}\n$$\n\n$\\notacommand$\n\n$\\href{javascript:alert(1)}{x}$', true)")
    check("code is coloured", browser.until("$('try').querySelector('.hljs-keyword, .hljs-type, .hljs-number')"))
    check("formulas are set", browser.until("$('try').querySelectorAll('.katex').length >= 3") and browser.run("$('try').querySelectorAll('.display .katex').length") == 1)
    check("those that are none stay", browser.run("$('try').textContent").count("notacommand") == 1 and browser.run("$('try').querySelectorAll('a').length") == 0)
    check("blocks that stay the same are not made again", browser.run(
        "(() => { const box = $('try'); markdown.showMarkdown(box, 'one\\n\\ntwo', false); const first = box.firstChild;"
        " markdown.showMarkdown(box, 'one\\n\\ntwo three', false); return first === box.firstChild && box.lastChild.textContent.trim() === 'two three'; })()"))
    for text in (">" * 20000, "[" * 20000, "$" * 20000, "\\\\[" * 20000, "*a" * 20000, "x" * 500000, "```js\n" + "let a = 1;\n" * 20000, "`" * 20001, "<" * 20000):
        browser.run("$('try').replaceChildren()")
        took = browser.run(f"(() => {{ const begun = performance.now(); markdown.showMarkdown($('try'), {json.dumps(text)}, true); return performance.now() - begun; }})()")
        check(f"{text[:8]!r} many times is shown", browser.run("$('try').textContent.length") > 0 and took < 20000, took)
    browser.run("$('try').remove()")


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


def test_clipboard(browser):
    """Over plain HTTP there is no navigator.clipboard."""
    browser.run("Object.defineProperty(navigator, 'clipboard', { value: undefined, configurable: true });"
                "document.addEventListener('copy', () => { window.copied = getSelection().toString() || document.activeElement.value; })")
    click(browser, "Copy", 0)
    check("copied all the same", browser.until("window.copied !== undefined") and browser.run("copied") == contents(browser)[0].removeprefix("user: "), browser.run("copied"))


def test_looks(browser, server):
    server.script = ["| wide | table |\n|--|--|\n| " + "x" * 300 + " | y |\n\n`" + "long" * 100 + "`\n\n```\n" + "w" * 400 + "\n```\n\n" + "u" * 400 + "\n\n$$" + "x+" * 200 + "x$$"]
    browser.run("model.model = 'script'")
    say(browser, "w" * 300)
    browser.until("state.running.size === 0")
    for width, height in ((360, 800), (768, 1000), (1280, 860), (1600, 900)):
        for dark in (False, True):
            browser.look(width, height, dark)
            name = f"{width}_{'dark' if dark else 'light'}"
            check(f"nothing stands out at the side, {width} px", not browser.run("document.documentElement.scrollWidth > innerWidth"))
            check(f"nor below, {width} px", not browser.run("document.documentElement.scrollHeight > innerHeight"))
            check(f"nothing is cut off, {width} px", browser.run("$('log').scrollWidth <= $('log').clientWidth && $('form').getBoundingClientRect().bottom <= innerHeight"))
            picture(browser, "chat_" + name)
            if width < 900:
                browser.run("$('side-toggle').click()")
                check("the list is a drawer", browser.until("$('side').getBoundingClientRect().left === 0"))
                picture(browser, "list_" + name)
                browser.run("$('shade').click()")
                check("that closes", browser.until("getComputedStyle($('side')).visibility === 'hidden'"))
            browser.run("$('engine-toggle').click()")
            check("the engine, when asked for", browser.run("$('engine').offsetParent !== null && ($('chat').offsetParent === null) === (innerWidth <= 1100)"))
            picture(browser, "engine_" + name)
            browser.run("$('engine-toggle').click()")


def test_long_conversation(browser, server):
    """200 turns: what is shown stays in its place when something is added."""
    messages = [{"id": str(i), "parent": str(i - 1) if i else None, "role": ("user", "assistant")[i % 2], "made": i + 1, "finish": "stop",
                 "content": f"**Message** {i}\n\n```c\nint x = {i};\n```\n\n" + "word " * 60} for i in range(400)]
    text = json.dumps({"format": "quipu conversations", "version": 1, "conversations": [{"title": "long", "messages": messages, "leaf": "399"}]})
    browser.run(f"list.importText({json.dumps(text)})")
    check("200 turns are shown", browser.until("tree.pathTo(state.current).length === 400 && $('messages').children.length === 400"))
    browser.until("model.defaults")
    browser.run("window.kept = [...$('messages').children]; model.model = 'script'")
    server.script = [f"word{i} " for i in range(3000)]
    say(browser, "more")
    answered(browser, 402)
    check("and stay as they are", browser.run("kept.every((node, i) => $('messages').children[i] === node) && $('messages').children.length === 402"))
    check("the answer is whole", contents(browser)[-1].endswith("word2999 ") and browser.run("$('messages').lastChild.textContent.includes('word2999')"))
    server.script = []


def test_real_server(browser):
    """Under its own policy, with a key and a prefix."""
    keys = Path(browser.folder.name) / "keys"
    keys.write_text("sesame\n")
    with Server("--api-prefix", "/llm", "--api-key-file", str(keys), wait=False) as server:
        open_page(browser, f"http://127.0.0.1:{server.port}/llm")
        check("the address gets its slash", browser.run("location.pathname") == "/llm/")
        browser.until("$('settings').open")
        browser.run("document.activeElement.value = 'sesame'; $('settings').querySelector('[name=max_tokens]').value = 4; $('settings').querySelector('button.main').click()")
        check("its model", browser.until("model.defaults?.temperature !== undefined"))
        browser.problems = [p for p in browser.problems if "401" not in p and "503" not in p]
        say(browser, "hello")
        check("its answer", answered(browser, 2) and browser.run("tree.pathTo(state.current)[1].finish !== undefined"), browser.run("tree.pathTo(state.current)"))
        click(browser, "Continue") if contents(browser)[1].removeprefix("assistant: ").strip() else None
        browser.until("state.running.size === 0")
        check("continued", not browser.run("tree.pathTo(state.current)[1].failure"), browser.run("tree.pathTo(state.current)[1]"))
        browser.run("markdown.showMarkdown($('messages'), '$x$\\n\\n```c\\nint x;\\n```', true)")
        check("its libraries", browser.until("document.querySelector('#messages .katex') && document.querySelector('#messages [class^=hljs]')"))
        check("its fonts", browser.run("document.fonts.ready.then(() => document.fonts.load('16px KaTeX_Math')).then((f) => f.length)") == 1)
        status, reply, _ = server.request("GET", "/llm/page/katex.js")
        check("files are kept by browsers", server.request("GET", "/llm/page/katex.js", headers={"If-None-Match": reply.getheader("ETag")})[0] == 304)
        check("others are not there", [server.get("/llm/page/" + name)[0] for name in ("nothing.js", "../page.c", "page")] == [404] * 3)
        browser.run("$('engine-toggle').click()")
        check("its engine", browser.until("$('pages-text').textContent.includes('pages')"))
        browser.run("$('engine-toggle').click()")


def main():
    if not CHROMIUM:
        print("skipped: there is no Chromium")
        return 77
    absent = [path for _, _, path in libraries(PAGE) if not os.path.exists(path)]
    if absent:
        print(f"skipped: there is no {absent[0]}, which the page takes")
        return 77
    server = FakeServer(folder=PAGE, engine=ENGINE)
    browser = Browser()
    try:
        browser.look(1400, 900, False)
        open_page(browser, server.url + "/")
        check("the model's name", browser.until("model.model === 'plain' && $('model').textContent === model.model"))
        check("the engine's panel is closed", browser.run("$('engine').hidden"))
        test_conversation(browser, server)
        test_answers(browser, server)
        test_files(browser, server)
        test_settings(browser, server)
        test_stop_and_failure(browser, server)
        test_reload(browser, server)
        test_list(browser, server)
        test_two_tabs(browser, server)
        test_clipboard(browser)
        test_markdown(browser)
        browser.run("$('engine-toggle').click()")
        test_engine(browser)
        test_timeline(browser, server)
        browser.run("$('engine-toggle').click()")
        test_looks(browser, server)
        test_old_page(browser, server)
        test_models(browser, server)
        test_key(browser, server)
        check("no errors in the console", not browser.problems, browser.problems)
        test_long_conversation(browser, server)
        test_real_server(browser)
        test_several_models(browser)
        check("nor with a real server", not browser.problems, browser.problems)
        test_dying_server(browser)
    finally:
        browser.close()
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


sys.exit(main())
