/* A conversation as a tree: an answer that is made again, and a message that is edited, stand beside the old
 * one with the same parent. `leaf` is the last message of the branch that is shown. */
import { newId } from "./dom.js";

let last = 0;
const now = () => (last = Math.max(Date.now(), last + 1)); /* grows, so that siblings have an order */

const byAge = (a, b) => a.made - b.made;

export const newConversation = () => ({
  record: { id: newId(), title: "", made: now(), used: now(), leaf: null }, messages: new Map(),
});

export function fill(record, messages) {
  return { record, messages: new Map(messages.sort(byAge).map((m) => [m.id, m])) };
}

export function addMessage(c, parent, fields) {
  const message = { id: newId(), conversation: c.record.id, parent, made: now(), ...fields };
  c.messages.set(message.id, message);
  c.record.leaf = message.id;
  c.record.used = message.made;
  if (!c.record.title && message.role === "user") c.record.title = titleOf(message);
  return message;
}

export const titleOf = (message) =>
  (message.content.trim().split("\n")[0] || message.files?.[0]?.name || "").slice(0, 80);

export const childrenOf = (c, id) => [...c.messages.values()].filter((m) => m.parent === id).sort(byAge);
export const siblingsOf = (c, message) => childrenOf(c, message.parent);

/* The newest messages below one, to the end of the branch. */
export function newestLeaf(c, id) {
  for (let next; (next = childrenOf(c, id).at(-1)); id = next.id);
  return id;
}

/* From the first message to the one that is named; to the leaf. */
export function pathTo(c, id = c.record.leaf) {
  const path = new Set();
  for (let m = c.messages.get(id); m && !path.has(m); m = c.messages.get(m.parent)) path.add(m);
  return [...path].reverse();
}

/* The message and all below it. */
export function below(c, id) {
  return [id, ...childrenOf(c, id).flatMap((m) => below(c, m.id))];
}
