/* The conversations at the side: search, rename, delete, export, import. */
import { $, element, icon, iconButton, save, say, settled } from "./dom.js";
import * as store from "./store.js";
import { asJson, asMarkdown, fileName, fromJson } from "./transfer.js";
import { fill } from "./tree.js";

let act = {}; /* open(id), removed(id), current(): the id, isRunning(id) */
let found = null; /* ids that the search has found; null: no search */

const load = async (record) => fill(record, await store.readMessages(record.id));

async function rename(record, row) {
  const field = element("input", { "aria-label": "Name of the conversation", maxlength: 200 });
  field.value = record.title;
  let over = false;
  const end = async (keeps) => {
    if (over) return;
    over = true;
    if (keeps && field.value.trim()) await store.write(Object.assign(record, { title: field.value.trim(), named: true }));
    act.renamed(record);
    showList();
  };
  field.onkeydown = (event) => {
    event.stopPropagation();
    if (event.key === "Enter") end(true);
    if (event.key === "Escape") end(false);
  };
  field.onblur = () => end(true);
  row.replaceChildren(field);
  field.focus();
  field.select();
}

async function remove(record) {
  const kept = await load(record);
  act.removed(record.id);
  await store.removeConversation(record.id);
  showList();
  say(`Deleted “${record.title || "New conversation"}”.`, "Undo", async () => {
    await store.write(record, [...kept.messages.values()]);
    act.open(record.id);
    showList();
  });
}

async function exportOne(record, kind) {
  const c = await load(record), name = fileName(record.title);
  if (kind === "md") save(name + ".md", "text/markdown", asMarkdown(c));
  else save(name + ".json", "application/json", asJson([c]));
}

async function exportAll() {
  const records = await store.readAll("conversations");
  save("conversations.json", "application/json", asJson(await Promise.all(records.map(load))));
}

export async function importText(text) {
  let taken;
  try {
    taken = fromJson(text);
  } catch (error) {
    say(`The file is not imported: ${error.message}.`);
    return;
  }
  for (const c of taken) await store.write(c.record, [...c.messages.values()]);
  say(`Imported ${taken.length} ${taken.length === 1 ? "conversation" : "conversations"}.`);
  if (taken.length) act.open(taken[0].record.id);
  showList();
}

function rowOf(record, isCurrent) {
  const row = element("li", { class: isCurrent ? "current" : undefined });
  row.append(element("button", { type: "button", class: "title", "aria-current": isCurrent ? "page" : undefined, click: () => act.open(record.id) },
    act.isRunning(record.id) ? element("span", { class: "dot", title: "answering" }) : "", record.title || "New conversation"));
  if (isCurrent) row.append(
    iconButton("edit", "Rename", () => rename(record, row)),
    iconButton("save", "Export", () => exportOne(record, "json")),
    iconButton("text", "Export as Markdown", () => exportOne(record, "md")),
    iconButton("trash", "Delete", () => remove(record)));
  return row;
}

let shown = 0;
export async function showList() {
  const turn = ++shown, records = await store.readAll("conversations");
  if (turn !== shown || $("list").contains(document.activeElement?.closest("input"))) return; /* not while one is renamed */
  const wanted = records.filter((r) => !found || found.has(r.id)).sort((a, b) => b.used - a.used);
  $("list").replaceChildren(...wanted.map((record) => rowOf(record, record.id === act.current())));
  $("list-empty").textContent = found ? "Nothing found." : "No conversations yet.";
  $("list-empty").hidden = wanted.length > 0;
}

/* Titles and texts that have all the words. */
async function search() {
  const words = $("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  if (!words.length) found = null;
  else {
    const texts = new Map((await store.readAll("conversations")).map((r) => [r.id, r.title]));
    for (const m of await store.readAll("messages")) texts.set(m.conversation, (texts.get(m.conversation) ?? "") + "\n" + m.content);
    found = new Set([...texts].filter(([, text]) => words.every((word) => text.toLowerCase().includes(word))).map(([id]) => id));
  }
  showList();
}

export function startList(actions) {
  act = actions;
  $("search").oninput = settled(150, search);
  $("export-all").onclick = exportAll;
  $("import").onclick = () => $("import-file").click();
  $("import-file").onchange = async () => {
    const [file] = $("import-file").files;
    $("import-file").value = "";
    if (file) importText(await file.text());
  };
  $("new").prepend(icon("new"));
  store.onChange(showList);
  showList();
}
