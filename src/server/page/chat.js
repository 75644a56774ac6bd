/* The conversation: streaming, stop, regenerate, edit, settings; kept in this browser's localStorage. */
"use strict";

const $ = (id) => document.getElementById(id);

/* --- What is kept. --- */

const store = {
  read(name, otherwise) {
    try { return JSON.parse(localStorage.getItem("quipu." + name)) ?? otherwise; } catch { return otherwise; }
  },
  write(name, value) {
    try { localStorage.setItem("quipu." + name, JSON.stringify(value)); } catch { /* full, or not allowed */ }
  },
};
const emptyConversation = () => ({ id: Date.now().toString(36), messages: [] });
let conversations = store.read("conversations", []);
let settings = store.read("settings", {});
let current = conversations[0] ?? emptyConversation();
let model = "", defaults = {}; /* the server's settings of sampling */
let running = null; /* the AbortController of the answer under way */

/* Puts the conversation first; an empty one is forgotten. */
function keep(conversation) {
  conversations = conversations.filter((c) => c.id !== conversation.id && c.messages.length);
  if (conversation.messages.length) conversations.unshift(conversation);
  store.write("conversations", conversations.slice(0, 50));
  listConversations();
}

function listConversations() {
  const title = (c) => (c.messages.find((m) => m.role === "user")?.content ?? "New conversation").slice(0, 40);
  const all = current.messages.length ? conversations : [current, ...conversations];
  $("conversations").replaceChildren(...all.map((c) => new Option(title(c), c.id, false, c.id === current.id)));
  $("delete").disabled = !current.messages.length;
}

/* --- The server. --- */

const headers = () => ({
  "Content-Type": "application/json",
  ...(settings.key ? { Authorization: "Bearer " + settings.key } : {}),
});

async function refusal(response) {
  let message = response.status + " " + response.statusText;
  try { message = (await response.json()).error.message; } catch { /* not JSON */ }
  if (response.status === 401) {
    openSettings("This server needs an API key.");
    $("settings").querySelector("[name=key]").focus();
  }
  return new Error(message);
}

async function get(path) {
  const response = await fetch(path, { headers: headers() });
  if (!response.ok) throw await refusal(response);
  return response.json();
}

async function findModel() {
  try {
    const { id } = (await get("v1/models")).data[0];
    $("model").textContent = id;
    document.title = id + " · quipu";
    defaults = (await get("props")).default_generation_settings.params;
    model = id;
  } catch (error) {
    $("model").textContent = error.message;
  }
}

/* OpenAI's API draws from all tokens where nothing is set, so the server's defaults are sent. */
function requestBody(messages) {
  const body = { model, messages, stream: true, stream_options: { include_usage: true }, return_progress: true };
  for (const name of ["temperature", "top_p", "top_k", "min_p"])
    if (name in defaults) body[name] = defaults[name];
  for (const name of ["temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed", "max_tokens"])
    if (settings[name]) body[name] = Number(settings[name]);
  if (settings.stop) body.stop = [settings.stop];
  if (settings.system) body.messages = [{ role: "system", content: settings.system }, ...messages];
  return JSON.stringify(body);
}

/* Yields the data of each server-sent event. */
async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let text = ""; ; ) {
    const { done, value } = await reader.read();
    if (done) return;
    const parts = (text + value).split("\n\n");
    text = parts.pop();
    for (const part of parts)
      if (part.startsWith("data: ")) yield part.slice(6);
  }
}

/* Fills `answer` as the tokens come; calls `changed` after each. */
async function ask(messages, answer, changed, signal) {
  const begun = performance.now();
  const response = await fetch("v1/chat/completions",
    { method: "POST", headers: headers(), body: requestBody(messages), signal });
  if (!response.ok) throw await refusal(response);
  for await (const data of eventsOf(response)) {
    if (data === "[DONE]") return;
    const event = JSON.parse(data);
    if (event.error) throw new Error(event.error.message);
    answer.reading = event.prompt_progress;
    const choice = event.choices?.[0];
    if (choice?.delta?.content) {
      answer.content += choice.delta.content;
      answer.first ??= performance.now() - begun;
    }
    if (choice?.finish_reason) answer.finish = choice.finish_reason;
    if (event.usage) {
      answer.tokens = event.usage.completion_tokens;
      answer.cached = event.usage.prompt_tokens_details?.cached_tokens;
    }
    answer.took = performance.now() - begun;
    changed();
  }
}

/* --- What is shown. --- */

function button(label, act) {
  const made = document.createElement("button");
  made.type = "button";
  made.textContent = label;
  made.onclick = act;
  return made;
}

function statistics(message) {
  const parts = [];
  if (message.tokens) parts.push(message.tokens + (message.tokens === 1 ? " token" : " tokens"));
  if (message.tokens > 1 && message.took > message.first)
    parts.push(((message.tokens - 1) / (message.took - message.first) * 1000).toFixed(1) + " a second");
  if (message.first) parts.push("first after " + Math.round(message.first) + " ms");
  if (message.cached) parts.push(message.cached + " tokens cached");
  if (message.finish === "length") parts.push("cut at the limit of tokens");
  if (message.stopped) parts.push("stopped");
  return parts.join(" · ");
}

/* How much of a prompt is read that takes several passes. */
function progress({ reading }) {
  if (!reading || reading.processed === reading.total) return "";
  return `reading: ${reading.processed} of ${reading.total} tokens`;
}

function showMessage(message, index) {
  const box = document.createElement("div"), text = document.createElement("div"), foot = document.createElement("div");
  box.className = "message " + message.role;
  text.className = "text";
  foot.className = "foot";
  const user = message.role === "user", busy = running && index === current.messages.length - 1 && !user;
  if (user) text.textContent = message.content;
  else text.replaceChildren(...markdown(message.content));
  text.classList.toggle("waiting", Boolean(busy));
  if (busy) {
    foot.textContent = progress(message);
  } else {
    foot.append(button("Copy", () => navigator.clipboard?.writeText(message.content)));
    if (user) foot.append(button("Edit", () => edit(box, index)));
    else foot.append(button("Regenerate", () => answerFrom(index)), statistics(message));
  }
  box.append(text);
  if (message.failure) {
    const failure = document.createElement("p");
    failure.className = "failure";
    failure.textContent = message.failure;
    box.append(failure);
  }
  box.append(foot);
  return box;
}

function show() {
  $("messages").replaceChildren(...current.messages.map(showMessage));
  $("empty").hidden = current.messages.length > 0;
  $("send").hidden = Boolean(running);
  $("stop").hidden = !running;
  follow(true);
}

/* Only the last message changes while it is written, at most once a frame. */
let drawn = 0;
function showLast() {
  if (drawn) return;
  drawn = requestAnimationFrame(() => {
    drawn = 0;
    const index = current.messages.length - 1, near = isAtEnd();
    $("messages").lastElementChild?.replaceWith(showMessage(current.messages[index], index));
    follow(near);
  });
}

const isAtEnd = () => $("log").scrollHeight - $("log").scrollTop - $("log").clientHeight < 60;
function follow(wanted) {
  if (wanted) $("log").scrollTop = $("log").scrollHeight;
}

function edit(box, index) {
  const field = document.createElement("textarea"), foot = document.createElement("div");
  field.className = "edit";
  field.value = current.messages[index].content;
  foot.className = "foot";
  foot.append(button("Send", () => {
    current.messages[index].content = field.value.trim() || current.messages[index].content;
    answerFrom(index + 1);
  }), button("Cancel", show));
  field.onkeydown = (event) => { if (event.key === "Escape") show(); };
  box.replaceChildren(field, foot);
  field.focus();
}

/* --- What a person does. --- */

/* Drops the messages from `index` on, and asks for what follows those before. */
async function answerFrom(index) {
  if (running) return;
  const conversation = current;
  conversation.messages.length = index;
  const messages = conversation.messages.map(({ role, content }) => ({ role, content }));
  const answer = { role: "assistant", content: "" };
  conversation.messages.push(answer);
  running = new AbortController();
  keep(conversation);
  show();
  try {
    if (!model) await findModel();
    await ask(messages, answer, () => current === conversation && showLast(), running.signal);
  } catch (error) {
    if (error.name === "AbortError") answer.stopped = true;
    else answer.failure = error.message;
  }
  delete answer.reading;
  running = null;
  keep(conversation);
  show();
}

function send(event) {
  event?.preventDefault();
  const content = $("input").value.trim();
  if (!content || running) return;
  $("input").value = "";
  grow();
  current.messages.push({ role: "user", content });
  answerFrom(current.messages.length);
}

const stop = () => running?.abort();

function choose(conversation) {
  stop();
  current = conversation;
  listConversations();
  show();
  $("input").focus();
}

function grow() {
  $("input").style.height = "auto";
  $("input").style.height = $("input").scrollHeight + 2 + "px";
}

function openSettings(note = "") {
  const form = $("settings").querySelector("form");
  for (const field of form.elements) {
    if (!field.name) continue;
    field.value = settings[field.name] ?? "";
    if (field.type === "number" && field.name !== "seed") field.placeholder = defaults[field.name] ?? "";
  }
  $("settings-note").textContent = note;
  if (!$("settings").open) $("settings").showModal();
}

function saveSettings() {
  const form = $("settings").querySelector("form");
  for (const field of form.elements)
    if (field.name) settings[field.name] = field.value;
  store.write("settings", settings);
  findModel();
}

$("form").onsubmit = send;
$("stop").onclick = stop;
$("input").oninput = grow;
$("input").onkeydown = (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) send(event);
};
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !$("settings").open) stop();
});
$("new").onclick = () => choose(emptyConversation());
$("delete").onclick = () => {
  stop();
  current.messages = [];
  keep(current);
  choose(conversations[0] ?? emptyConversation());
};
$("conversations").onchange = () =>
  choose(conversations.find((c) => c.id === $("conversations").value) ?? current);
$("settings-open").onclick = () => openSettings();
$("settings").addEventListener("close", saveSettings);
$("engine-toggle").onclick = () => {
  const open = document.body.classList.toggle("engine");
  $("engine-toggle").setAttribute("aria-expanded", open);
  $("engine-toggle").textContent = open ? "Chat" : "Engine";
};

findModel();
listConversations();
show();
