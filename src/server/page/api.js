/* The server: its models, and answers as they come. */
import { requestSettings, settings, askForKey } from "./settings.js";
import { fenced } from "./transfer.js";

/* models: {id, loaded, managed}; defaults: the model's settings of sampling, and context: positions; null: not yet asked for. */
export const server = { models: [], model: "", defaults: null, context: 0 };

export const headers = () => ({
  "Content-Type": "application/json",
  ...(settings.key ? { Authorization: "Bearer " + settings.key } : {}),
});

async function refusal(response) {
  let message = response.status + " " + response.statusText;
  try {
    const { error } = await response.json();
    message = error?.message ?? error ?? message;
  } catch { /* not JSON */ }
  if (response.status === 401) askForKey();
  return Object.assign(new Error(message), { status: response.status });
}

/* fetch() says "Failed to fetch" of a server that is not there. */
async function call(path, options) {
  try {
    return await fetch(path, options);
  } catch (error) {
    throw error.name === "AbortError" ? error : new Error("The server does not answer.");
  }
}

export async function get(path, signal) {
  const response = await call(path, { headers: headers(), signal });
  if (!response.ok) throw await refusal(response);
  return response.json();
}

/* A model with a status is one of several, which the server loads when they are asked for. */
const modelOf = ({ id, status }) => ({ id, loaded: !status || status.value === "loaded", managed: Boolean(status) });

export const forModel = (path) => path + (server.models.length > 1 ? "?model=" + encodeURIComponent(server.model) : "");

/* Fills `server`. `wanted`: the name of a model, if the server has it; else one that runs. */
export async function findModel(wanted, told) {
  const before = server.model;
  server.models = (await get("v1/models")).data.map(modelOf);
  server.model = [({ id }) => id === wanted, ({ loaded }) => loaded, () => true].map((is) => server.models.find(is)).find(Boolean)?.id ?? "";
  if (server.model !== before) server.defaults = null;
  if (server.models.find(({ id }) => id === server.model)?.loaded) await findDefaults(told);
}

/* Waits while the model is loaded; one of several is loaded by this. */
export async function findDefaults(told, signal) {
  while (!server.defaults) {
    const asked = server.model;
    try {
      const { params, n_ctx } = (await get(forModel("props"), signal)).default_generation_settings;
      if (asked === server.model) Object.assign(server, { defaults: params, context: n_ctx });
    } catch (error) {
      if (error.status !== 503 || server.models.some(({ managed }) => managed)) throw error; /* or it says why it cannot be loaded */
      told(error.message);
      await new Promise((done) => setTimeout(done, 1000));
    }
  }
}

function withFiles({ role, content, reasoning, files }) {
  const parts = (files ?? []).map((f) => `${f.name}:\n${fenced(f.text)}`);
  return { role, content: [...parts, content].filter(Boolean).join("\n\n"), ...(reasoning ? { reasoning_content: reasoning } : {}) };
}

/* OpenAI's API draws from all tokens where nothing is set, so the server's defaults are sent. */
function requestBody(path, continues) {
  const messages = path.map(withFiles);
  const body = { model: server.model, messages, stream: true, stream_options: { include_usage: true },
    timings_per_token: true, return_progress: true };
  for (const name of ["temperature", "top_p", "top_k", "min_p"])
    if (name in (server.defaults ?? {})) body[name] = server.defaults[name];
  if (settings.system) messages.unshift({ role: "system", content: settings.system });
  if (continues) Object.assign(body, { continue_final_message: true, add_generation_prompt: false });
  return JSON.stringify(Object.assign(body, requestSettings()));
}

/* Yields the data of each server-sent event. */
async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let text = ""; ; ) {
    const { done, value } = await reader.read().catch((error) => { /* the server has gone */
      if (error.name === "AbortError") throw error;
      return { done: true };
    });
    if (done) return;
    const parts = (text + value).split("\n\n");
    text = parts.pop();
    for (const part of parts)
      if (part.startsWith("data: ")) yield part.slice(6);
  }
}

function take(event, answer, begun) {
  const choice = event.choices?.[0], delta = choice?.delta ?? {};
  answer.reading = event.prompt_progress;
  if (delta.reasoning_content) answer.reasoning = (answer.reasoning ?? "") + delta.reasoning_content;
  if (delta.content) answer.content += delta.content;
  if (delta.content || delta.reasoning_content) answer.first ??= performance.now() - begun;
  if (choice?.finish_reason) answer.finish = choice.finish_reason;
  if (event.usage) {
    answer.tokens = event.usage.completion_tokens;
    answer.positions = event.usage.prompt_tokens + event.usage.completion_tokens;
    answer.cached = event.usage.prompt_tokens_details?.cached_tokens;
  }
  if (event.timings) answer.rate = event.timings.predicted_per_second; /* the server's clock: events may come together */
}

/* Fills `answer` as the tokens come; calls `changed` after each. `path`: the messages before, and the answer
 * itself if it is continued. */
export async function ask(path, answer, continues, changed, signal) {
  const begun = performance.now();
  const response = await call("v1/chat/completions",
    { method: "POST", headers: headers(), body: requestBody(path, continues), signal });
  if (!response.ok) throw await refusal(response);
  for await (const data of eventsOf(response)) {
    if (data === "[DONE]") return;
    const event = JSON.parse(data);
    if (event.error) throw new Error(event.error.message);
    take(event, answer, begun);
    changed();
  }
  throw new Error("The connection ended before the answer did.");
}
