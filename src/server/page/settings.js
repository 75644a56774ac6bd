/* The settings: one table makes the dialog and the fields of requests. What is empty is not sent. */
import { $, element } from "./dom.js";
import { readSetting, writeSetting } from "./store.js";

const number = (name, label, min, max, step) => ({ name, label, type: "number", min, max, step });
const text = (name, label, rows, hint) => ({ name, label, type: "textarea", rows, hint });
const GROUPS = [
  ["", [
    text("system", "System prompt", 4),
    number("temperature", "Temperature", 0, 2, 0.05),
    number("max_tokens", "Tokens at most", 1, undefined, 1),
    { name: "reasoning_effort", label: "Thinking", type: "select", options: ["", "none", "low", "medium", "high"] },
    number("seed", "Seed", 0, undefined, 1),
    text("stop", "Stop before", 1, "a text a line"),
  ]],
  ["Samplers", [
    number("top_p", "Top p", 0.01, 1, 0.01), number("top_k", "Top k", 0, undefined, 1), number("min_p", "Min p", 0, 1, 0.01),
    number("typical_p", "Typical p", 0, 1, 0.01), number("top_n_sigma", "Top n sigma", -1, undefined, 0.1),
    number("repetition_penalty", "Repetition penalty", 0.1, 3, 0.05), number("presence_penalty", "Presence penalty", -2, 2, 0.1),
    number("frequency_penalty", "Frequency penalty", -2, 2, 0.1), number("xtc_probability", "XTC probability", 0, 1, 0.01),
    number("xtc_threshold", "XTC threshold", 0, 1, 0.01), number("dry_multiplier", "DRY multiplier", 0, undefined, 0.1),
    number("dry_base", "DRY base", 0, undefined, 0.05), number("dry_allowed_length", "DRY allowed length", 0, undefined, 1),
    { name: "mirostat", label: "Mirostat", type: "select", options: ["", "0", "2"] },
    number("mirostat_tau", "Mirostat tau", 0, 100, 0.1), number("mirostat_eta", "Mirostat eta", 0, 1, 0.01),
  ]],
  ["Form of answers", [
    text("schema", "JSON Schema", 5, "answers are JSON that it accepts"),
    text("grammar", "Grammar", 5, "GBNF; answers are texts of it"),
  ]],
  ["Other fields of requests", [text("other", "JSON", 3, 'an object, such as {"min_tokens": 5}')]],
];
const FIELDS = GROUPS.flatMap(([, fields]) => fields);

export let settings = (await readSetting("settings")) ?? {};

function parsed(name, what) {
  let value;
  try { value = JSON.parse(settings[name]); } catch (error) { throw new Error(`${what} is not JSON: ${error.message}`); }
  if (typeof value !== "object" || value === null || Array.isArray(value)) throw new Error(`${what} must be an object, as {"...": ...}`);
  return value;
}

/* The fields of a request that the settings ask for; throws where they are not JSON. */
export function requestSettings() {
  const body = {};
  for (const { name, type } of FIELDS)
    if (settings[name] && (type === "number" || name === "mirostat")) body[name] = Number(settings[name]);
  if (settings.reasoning_effort) body.reasoning_effort = settings.reasoning_effort;
  const stops = (settings.stop ?? "").split("\n").filter(Boolean);
  if (stops.length) body.stop = stops;
  if (settings.schema?.trim() && settings.grammar?.trim()) throw new Error("There is a JSON Schema and a grammar; an answer can have one form only.");
  if (settings.schema?.trim())
    body.response_format = { type: "json_schema", json_schema: { name: "answer", strict: true, schema: parsed("schema", "The JSON Schema") } };
  if (settings.grammar?.trim()) body.grammar = settings.grammar;
  return Object.assign(body, settings.other?.trim() ? parsed("other", "Other fields") : {});
}

function fieldOf({ name, label, type, hint, options, ...attributes }) {
  const made = type === "textarea" ? element("textarea", { name, spellcheck: name === "system" ? undefined : "false", ...attributes })
    : type === "select" ? element("select", { name }, ...options.map((value) => new Option(value || "as the model is set", value)))
    : element("input", { name, type, ...attributes });
  return element("label", { class: type === "textarea" ? "wide" : undefined }, label + (hint ? ` (${hint})` : ""), made);
}

function makeFields() {
  for (const [title, fields] of GROUPS) {
    const box = title ? element("details", { class: "wide" }, element("summary", {}, title)) : $("settings-fields");
    const grid = title ? element("div", { class: "grid" }) : box;
    grid.append(...fields.map(fieldOf));
    if (title) box.append(grid);
    if (title) $("settings-fields").append(box);
  }
}

const form = () => $("settings").querySelector("form").elements;

export function openSettings(defaults = {}, note = "") {
  for (const { name, type } of [...FIELDS, { name: "key" }]) {
    form()[name].value = settings[name] ?? "";
    if (type === "number" && name !== "seed") form()[name].placeholder = defaults[name] ?? "";
  }
  for (const box of $("settings").querySelectorAll("details"))
    box.open = [...box.querySelectorAll("[name]")].some((field) => settings[field.name]);
  $("settings-note").textContent = note;
  if (!$("settings").open) $("settings").showModal();
}

export function askForKey() {
  if ($("settings").open) return;
  openSettings({}, "This server needs an API key.");
  form().key.focus();
}

/* Done: checks, keeps and closes. Escape and Cancel keep nothing. */
function done(event, changed) {
  event.preventDefault();
  const before = settings;
  settings = { ...settings, key: form().key.value };
  for (const { name } of FIELDS) settings[name] = form()[name].value;
  try {
    requestSettings();
  } catch (error) {
    settings = before;
    $("settings-note").textContent = error.message;
    return;
  }
  writeSetting("settings", settings);
  $("settings").close();
  changed();
}

export async function replaceSettings(value) {
  settings = value;
  await writeSetting("settings", settings);
}

export function startSettings(changed) {
  makeFields();
  const element = $("settings").querySelector("form");
  element.onsubmit = (event) => done(event, changed);
  /* What the browser finds wrong may be in a part that is folded. */
  element.addEventListener("invalid", (event) => { const box = event.target.closest("details"); if (box) box.open = true; }, true);
  $("settings-cancel").onclick = () => $("settings").close();
}
