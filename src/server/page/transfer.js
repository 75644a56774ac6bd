/* Conversations as files: JSON that can be read back, and Markdown for people. A file that is damaged is
 * refused as a whole, with a sentence that says where. */
import { newId } from "./dom.js";
import { pathTo } from "./tree.js";

const FORMAT = "quipu conversations";

export const asJson = (conversations) => JSON.stringify({
  format: FORMAT, version: 1,
  conversations: conversations.map(({ record, messages }) => ({ ...record, messages: [...messages.values()] })),
}, null, 1);

export function asMarkdown(c) {
  const parts = pathTo(c).map((m) => {
    const files = (m.files ?? []).map((f) => `\n\`${f.name}\`:\n\n${fenced(f.text)}\n`).join("");
    return `## ${m.role === "user" ? "User" : "Assistant"}\n${files}\n${m.content}\n`;
  });
  return `# ${c.record.title || "Conversation"}\n\n${parts.join("\n")}`;
}

/* Text between fences longer than any in it. */
export function fenced(text) {
  const fence = "`".repeat(Math.max(3, ...(text.match(/`+/g) ?? []).map((run) => run.length + 1)));
  return `${fence}\n${text}\n${fence}`;
}

export const fileName = (title) => (title.replace(/[^\p{L}\p{N} _-]+/gu, " ").trim().slice(0, 60) || "conversation");

const isText = (value) => typeof value === "string";
const isOptional = (value, kind) => value === undefined || value === null || typeof value === kind;

function checkMessage(m, place) {
  const wrong = (what) => { throw new Error(`${place} ${what}`); };
  if (typeof m !== "object" || m === null) wrong("is not an object");
  if (m.role !== "user" && m.role !== "assistant") wrong(`has the role ${JSON.stringify(m.role)}; expected "user" or "assistant"`);
  if (!isText(m.content)) wrong("has no text \"content\"");
  if (!isText(m.id)) wrong("has no \"id\"");
  if (!isOptional(m.parent, "string")) wrong("has a \"parent\" that is not a text");
  if (!isOptional(m.reasoning, "string") || !isOptional(m.failure, "string")) wrong("has \"reasoning\" or a \"failure\" that is not a text");
  const files = m.files ?? [];
  if (!Array.isArray(files) || !files.every((f) => isText(f?.name) && isText(f?.text))) wrong("has \"files\" without names and texts");
}

function hasCircle({ messages }) {
  const sound = new Set();
  for (let m of messages.values()) {
    const way = new Set();
    for (; m && !sound.has(m); m = messages.get(m.parent)) {
      if (way.has(m)) return true;
      way.add(m);
    }
    way.forEach((passed) => sound.add(passed));
  }
  return false;
}

/* Only known members are taken over; ids are new, so that a file can be imported twice. */
function takeConversation(c, i) {
  const place = `conversation ${i + 1}`;
  if (typeof c !== "object" || c === null || !Array.isArray(c.messages)) throw new Error(`${place} has no list of messages`);
  c.messages.forEach((m, k) => checkMessage(m, `${place}: message ${k + 1}`));
  const ids = new Map(c.messages.map((m) => [m.id, newId()])), id = newId(), begun = Date.now();
  if (ids.size !== c.messages.length) throw new Error(`${place} has two messages with the same id`);
  const messages = c.messages.map((m, k) => {
    if (m.parent && !ids.has(m.parent)) throw new Error(`${place}: message ${k + 1} follows a message that the file does not have`);
    const { role, content, reasoning, files, failure, finish, stopped } = m;
    return {
      id: ids.get(m.id), conversation: id, parent: m.parent ? ids.get(m.parent) : null, made: Number.isFinite(m.made) ? m.made : begun + k,
      role, content, ...(reasoning ? { reasoning } : {}), ...(failure ? { failure } : {}),
      ...(files?.length ? { files: files.map(({ name, text }) => ({ name, text })) } : {}),
      ...(isText(finish) ? { finish } : {}), ...(stopped ? { stopped: true } : {}),
    };
  });
  const made = { id, title: isText(c.title) ? c.title.slice(0, 200) : "", named: c.named === true, made: begun,
    used: Number.isFinite(c.used) ? c.used : begun, leaf: ids.get(c.leaf) ?? messages.at(-1)?.id ?? null };
  const taken = { record: made, messages: new Map(messages.map((m) => [m.id, m])) };
  if (hasCircle(taken)) throw new Error(`${place} has messages that follow each other in a circle`);
  return taken;
}

export function fromJson(text) {
  let file;
  try { file = JSON.parse(text); } catch (error) { throw new Error("it is not JSON: " + error.message); }
  if (file?.format !== FORMAT || !Array.isArray(file.conversations)) throw new Error("it is not a file of conversations that this page has exported");
  return file.conversations.map(takeConversation);
}

/* The conversations of pages before 2026-12, which were one item of localStorage. */
export function fromLocalStorage() {
  const read = (name) => { try { return JSON.parse(localStorage.getItem("quipu." + name)); } catch { return null; } };
  const old = read("conversations"), settings = read("settings");
  const taken = (Array.isArray(old) ? old : []).filter((c) => c?.messages?.length).flatMap((c) => {
    const messages = c.messages.map((m, i) => ({ ...m, id: String(i), parent: i ? String(i - 1) : null, finish: m.finish ?? "stop" }));
    try { return [takeConversation({ title: messages[0]?.content?.slice(0, 80), messages }, 0)]; } catch { return []; }
  });
  return { conversations: taken, settings };
}
