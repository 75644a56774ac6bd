/* How a message looks: thoughts folded, text, files, what can be done with it. A view changes in place while
 * the answer comes, so that what a reader has unfolded or marked stays. */
import { button, copies, element, iconButton } from "./dom.js";
import { showMarkdown } from "./markdown.js";

function statistics(m) {
  const parts = [];
  if (m.tokens) parts.push(m.tokens + (m.tokens === 1 ? " token" : " tokens"));
  if (m.tokens > 1 && m.rate) parts.push(m.rate.toFixed(1) + " a second");
  if (m.first) parts.push("first after " + Math.round(m.first) + " ms");
  if (m.cached) parts.push(m.cached + " tokens cached");
  if (m.finish === "length") parts.push("cut at the limit of tokens");
  if (m.stopped) parts.push("stopped");
  if (!m.finish && !m.stopped && !m.failure) parts.push("not finished");
  return parts.join(" · ");
}

/* How much of a prompt is read that takes several passes. */
const progress = ({ reading, loading }) =>
  loading ? "the model is being loaded" : !reading || reading.processed === reading.total ? "" : `reading: ${reading.processed} of ${reading.total} tokens`;

const fileView = ({ name, text }) =>
  element("details", { class: "file" }, element("summary", {}, `${name} (${text.length.toLocaleString("en")} characters)`),
    element("pre", { tabindex: 0 }, text));

function branches(siblings, message, act) {
  const at = siblings.indexOf(message);
  if (siblings.length < 2) return null;
  return element("span", { class: "branches", role: "group", "aria-label": "Versions" },
    iconButton("left", "Earlier version", () => act.choose(siblings[at - 1]), { disabled: at === 0 }),
    element("span", {}, `${at + 1}/${siblings.length}`),
    iconButton("right", "Later version", () => act.choose(siblings[at + 1]), { disabled: at === siblings.length - 1 }));
}

function actions(message, siblings, isLast, act) {
  const user = message.role === "user";
  return [
    branches(siblings, message, act),
    iconButton("copy", "Copy", copies(() => message.content)),
    iconButton("edit", "Edit", () => act.edit(message)),
    user ? null : iconButton("again", "Regenerate", () => act.regenerate(message)),
    !user && isLast && message.content.trim() ? iconButton("continue", "Continue", () => act.proceed(message)) : null,
    iconButton("trash", "Delete from here on", () => act.remove(message)),
    user ? null : element("span", { class: "statistics" }, statistics(message)),
  ].filter(Boolean);
}

/* A view {node, update(context)}; context: {busy, siblings, isLast}. act: what the buttons do. */
export function messageView(message, act) {
  const user = message.role === "user";
  const text = element("div", { class: "text" }), foot = element("div", { class: "foot" });
  const thoughts = element("div", { class: "text" }), summary = element("summary");
  const thinking = element("details", { class: "thinking" }, summary, thoughts), failure = element("p", { class: "failure" });
  const node = element("article", { class: "message " + message.role, "aria-label": user ? "You" : "Answer" },
    ...(message.files ?? []).map(fileView), thinking, text, failure, foot);
  let drawn = [];
  function update({ busy, siblings, isLast }) {
    const now = [busy, message.content, message.reasoning];
    thinking.hidden = !message.reasoning;
    if (message.reasoning) summary.textContent = busy && !message.content ? "Thinking …" : "Thoughts";
    if (now.some((value, i) => value !== drawn[i])) {
      if (message.reasoning) showMarkdown(thoughts, message.reasoning, !busy);
      if (user) text.textContent = message.content;
      else showMarkdown(text, message.content, !busy);
    }
    drawn = now;
    text.hidden = user && !message.content;
    text.classList.toggle("waiting", busy);
    failure.hidden = !message.failure;
    failure.textContent = message.failure ?? "";
    foot.replaceChildren(...(busy ? [progress(message)] : actions(message, siblings, isLast, act)));
  }
  return { node, update };
}

/* In place of the message: its text in a field. `done(text, sends)`. */
export function editView(message, done, cancel) {
  const field = element("textarea", { class: "edit", "aria-label": "Edited text" }), user = message.role === "user";
  field.value = message.content;
  field.onkeydown = (event) => {
    if (event.key === "Escape") { event.stopPropagation(); cancel(); }
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) done(field.value, user);
  };
  const foot = element("div", { class: "foot" }, user ? button("Send", () => done(field.value, true), { class: "main" }) : null,
    button("Save", () => done(field.value, false), { class: user ? undefined : "main" }), button("Cancel", cancel));
  return { node: element("article", { class: "message editing", "aria-label": "Editing" }, field, foot), field };
}
