/* The conversation that is shown, and the answers under way: there may be one in each conversation. */
import { $, say } from "./dom.js";
import { ask, findDefaults, findModel, server } from "./api.js";
import { startComposing } from "./compose.js";
import { showList, startList } from "./list.js";
import { editView, messageView } from "./message.js";
import { openSettings, replaceSettings, settings, startSettings } from "./settings.js";
import * as store from "./store.js";
import { fromLocalStorage } from "./transfer.js";
import { addMessage, below, fill, newConversation, newestLeaf, pathTo, siblingsOf } from "./tree.js";

export const state = { current: newConversation(), running: new Map() }; /* running: id of a conversation: {conversation, answer, abort} */
const views = new WeakMap(); /* a message: what messageView() makes */
const KEEP_MS = 400; /* an answer under way is kept so often */

const runningIn = (c) => state.running.get(c.record.id);

/* --- Shown. --- */

/* Those that stay the same are left in their place. */
function showNodes(box, nodes) {
  nodes.forEach((node, i) => {
    if (box.childNodes[i] !== node) box.insertBefore(node, box.childNodes[i] ?? null);
  });
  while (box.childNodes.length > nodes.length) box.lastChild.remove();
}

function contextOf(c, message, path) {
  return { busy: runningIn(c)?.answer === message, siblings: siblingsOf(c, message), isLast: message === path.at(-1) };
}

export function show(goesToEnd = true) {
  const c = state.current, path = pathTo(c), near = isAtEnd();
  const nodes = path.map((message) => {
    if (!views.has(message)) views.set(message, messageView(message, actions));
    views.get(message).update(contextOf(c, message, path));
    return views.get(message).node;
  });
  showNodes($("messages"), nodes);
  $("empty").hidden = path.length > 0;
  $("send").hidden = Boolean(runningIn(c));
  $("stop").hidden = !runningIn(c);
  $("messages").setAttribute("aria-busy", Boolean(runningIn(c)));
  follow(goesToEnd || near);
}

/* Only the last message changes while it is written: once a frame, and less often where that takes long. */
let drawing = false, undrawn = null; /* what has come meanwhile is drawn after it */
function showAnswer(c, answer) {
  undrawn = drawing ? [c, answer] : null;
  if (drawing || c !== state.current) return;
  drawing = true;
  requestAnimationFrame(() => {
    const begun = performance.now(), near = isAtEnd();
    if (c === state.current && runningIn(c)?.answer === answer) views.get(answer)?.update(contextOf(c, answer, pathTo(c)));
    follow(near);
    setTimeout(() => {
      drawing = false;
      if (undrawn) showAnswer(...undrawn);
    }, 3 * (performance.now() - begun));
  });
}

const isAtEnd = () => $("log").scrollHeight - $("log").scrollTop - $("log").clientHeight < 60;
function follow(wanted) {
  if (wanted) $("log").scrollTop = $("log").scrollHeight;
  $("to-end").hidden = isAtEnd();
}

/* --- Answers. --- */

async function fails(work) {
  try {
    await work;
  } catch (error) {
    say("The browser could not keep this: " + error.message);
  }
}

async function answer(c, message, path, continues) {
  const run = { conversation: c, answer: message, abort: new AbortController() };
  let kept = performance.now();
  for (const name of ["failure", "stopped", "finish"]) delete message[name];
  state.running.set(c.record.id, run);
  if (c === state.current) setAddress(c);
  show();
  await fails(store.write(c.record, [...path, message]));
  showList();
  try {
    if (!server.model) await startModel();
    message.loading = !server.defaults;
    showAnswer(c, message);
    await findDefaults(tell, run.abort.signal);
    if (message.loading) await startModel(); /* others may have ended for it */
    delete message.loading;
    await ask(path, message, continues, () => {
      showAnswer(c, message);
      if (performance.now() - kept < KEEP_MS) return;
      kept = performance.now();
      fails(store.writeMessage(message));
    }, run.abort.signal);
  } catch (error) {
    if (error.name === "AbortError") message.stopped = true;
    else message.failure = error.message;
  }
  delete message.reading;
  delete message.loading;
  state.running.delete(c.record.id);
  if (c === state.current) show(false);
  if (c.messages.has(message.id)) await fails(store.writeMessage(message));
  showList();
}

function answerTo(c, parent) {
  if (runningIn(c)) return;
  const path = pathTo(c, parent);
  answer(c, addMessage(c, parent, { role: "assistant", content: "" }), path, false);
}

function send(content, files) {
  const c = state.current;
  if (runningIn(c)) return false;
  answerTo(c, addMessage(c, c.record.leaf, { role: "user", content, ...(files.length ? { files } : {}) }).id);
  return true;
}

export function stop(c = state.current) {
  runningIn(c)?.abort.abort();
}

/* What the buttons of a message do. */
const actions = {
  regenerate: (message) => answerTo(state.current, message.parent),
  proceed(message) {
    const c = state.current;
    if (!runningIn(c)) answer(c, message, pathTo(c, message.id), true);
  },
  async choose(message) {
    const c = state.current;
    c.record.leaf = newestLeaf(c, message.id);
    show(false);
    await fails(store.write(c.record));
  },
  edit(message) {
    const c = state.current, view = views.get(message);
    const done = async (content, sends) => {
      if (runningIn(c)) return;
      if (!content.trim() || (content === message.content && !sends)) return show(false);
      const { role, files } = message;
      const made = addMessage(c, message.parent, { role, content, ...(files ? { files } : {}), ...(role === "assistant" ? { finish: "edited" } : {}) });
      if (sends) return answerTo(c, made.id);
      show(false);
      await fails(store.write(c.record, [made]));
    };
    const { node, field } = editView(message, done, () => show(false));
    view.node.replaceWith(node);
    field.style.height = Math.min(field.scrollHeight + 4, innerHeight / 2) + "px";
    field.focus();
  },
  async remove(message) {
    const c = state.current;
    if (runningIn(c)) return;
    const gone = below(c, message.id).map((id) => c.messages.get(id)), leaf = c.record.leaf;
    for (const { id } of gone) c.messages.delete(id);
    const rest = siblingsOf(c, message).at(-1);
    c.record.leaf = rest ? newestLeaf(c, rest.id) : message.parent;
    show(false);
    await fails(store.removeMessages(c.record.id, gone.map(({ id }) => id)));
    await fails(store.write(c.record));
    say(gone.length === 1 ? "Deleted a message." : `Deleted ${gone.length} messages.`, "Undo", async () => {
      for (const m of gone) c.messages.set(m.id, m);
      c.record.leaf = leaf;
      if (c === state.current) show(false);
      await fails(store.write(c.record, gone));
    });
  },
};

/* --- Conversations. --- */

/* A new conversation has no address before its first message. */
function setAddress(c) {
  if (location.hash !== "#" + c.record.id) history[location.hash ? "pushState" : "replaceState"](null, "", "#" + c.record.id);
}

export async function open(id, isChosen = true) {
  const record = (await store.readAll("conversations")).find((r) => r.id === id);
  if (!record) return startNew();
  state.current = state.running.get(id)?.conversation ?? fill(record, await store.readMessages(id));
  if (isChosen) setAddress(state.current);
  leaveSide();
  show();
  showList();
}

export function startNew() {
  state.current = newConversation();
  if (location.hash) history.pushState(null, "", location.pathname + location.search);
  leaveSide();
  show();
  showList();
  $("input").focus();
}

/* Another tab has changed a conversation. */
async function changedElsewhere(id) {
  const c = state.current;
  if (c.record.id !== id) return;
  const record = (await store.readAll("conversations")).find((r) => r.id === id);
  if (!record || c !== state.current) return;
  if (runningIn(c) || document.querySelector(".editing")) Object.assign(c.record, { title: record.title, named: record.named });
  else {
    const fresh = state.current = fill(record, await store.readMessages(id)), leaf = c.record.leaf;
    if (fresh.messages.has(leaf)) fresh.record.leaf = newestLeaf(fresh, leaf); /* each tab shows a branch of its own */
    show(false);
  }
}

/* --- The start. --- */

const tell = (note) => { $("model").textContent = note; };

function showModel() {
  document.title = server.model ? server.model + " · quipu" : "quipu";
  tell(server.models.length > 1 ? "" : server.model);
  $("models").hidden = server.models.length < 2;
  $("models").replaceChildren(...server.models.map(({ id, loaded, managed }) => new Option(managed && loaded ? id + " (loaded)" : id, id, false, id === server.model)));
}

async function startModel() {
  await findModel(settings.model, tell);
  showModel();
}

async function tryModel() {
  try {
    await startModel();
  } catch (error) {
    tell(error.message);
  }
}

/* On a narrow window the list of conversations covers the chat. */
const isNarrow = () => matchMedia("(max-width: 900px)").matches;
function leaveSide() {
  if (isNarrow()) document.body.classList.remove("side");
}
function toggleSide() {
  const open = document.body.classList.toggle(isNarrow() ? "side" : "no-side") === isNarrow();
  $("side-toggle").setAttribute("aria-expanded", open);
  if (open && isNarrow()) $("search").focus();
}

async function takeOldConversations() {
  const { conversations, settings: old } = fromLocalStorage();
  for (const c of conversations) await store.write(c.record, [...c.messages.values()]);
  if (old && !Object.keys(settings).length) await replaceSettings(old);
  for (const name of ["conversations", "settings"]) localStorage.removeItem("quipu." + name);
}

await takeOldConversations();
startSettings(tryModel);
startComposing(send);
startList({
  open, current: () => state.current.record.id, isRunning: (id) => state.running.has(id),
  renamed: (record) => { if (state.current.record.id === record.id) Object.assign(state.current.record, { title: record.title, named: true }); },
  removed(id) {
    state.running.get(id)?.abort.abort();
    if (state.current.record.id === id) startNew();
  },
});
store.onChange(changedElsewhere);
$("stop").onclick = () => stop();
$("new").onclick = startNew;
$("to-end").onclick = () => follow(true);
$("log").onscroll = () => { $("to-end").hidden = isAtEnd(); };
$("settings-open").onclick = () => openSettings(server.defaults ?? {});
$("models").onchange = () => replaceSettings({ ...settings, model: $("models").value }).then(tryModel);
$("side-toggle").onclick = toggleSide;
$("shade").onclick = leaveSide;
addEventListener("popstate", () => (location.hash ? open(location.hash.slice(1), false) : startNew()));
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || document.querySelector("dialog[open]")) return;
  if (document.body.classList.contains("side")) leaveSide();
  else stop();
});
if (!store.isKept) say("This browser keeps nothing: conversations end with this tab.");
await (location.hash ? open(location.hash.slice(1), false) : show());
await tryModel();
document.body.dataset.ready = "";
