/* What is kept in this browser, in IndexedDB: conversations {id, title, named, made, used, leaf}, messages
 * {id, conversation, parent, made, role, content, ...}, settings. Each message is a record of its own, so that
 * several tabs write without losing each other's; a channel tells the others what has changed. Where the
 * browser keeps nothing, as some private windows do, the same lives as long as the tab. */

const wait = (request) => new Promise((done, fail) => {
  request.onsuccess = () => done(request.result);
  request.onerror = () => fail(request.error);
});

function openDatabase() {
  const request = indexedDB.open("quipu", 1);
  request.onupgradeneeded = () => {
    request.result.createObjectStore("conversations", { keyPath: "id" });
    request.result.createObjectStore("messages", { keyPath: "id" }).createIndex("conversation", "conversation");
    request.result.createObjectStore("settings");
  };
  return wait(request);
}

let database = null, memory = null;
try {
  database = await openDatabase();
} catch {
  memory = { conversations: new Map(), messages: new Map(), settings: new Map() };
}
export const isKept = database !== null;

const channel = "BroadcastChannel" in window ? new BroadcastChannel("quipu") : null;
const tell = (conversation) => channel?.postMessage({ conversation });
export const onChange = (act) => channel?.addEventListener("message", ({ data }) => act(data.conversation));

/* `work` makes requests of the transaction; the promise is kept when all is on disk. */
function change(work) {
  const transaction = database.transaction(["conversations", "messages", "settings"], "readwrite");
  return new Promise((done, fail) => {
    transaction.oncomplete = () => done();
    transaction.onerror = transaction.onabort = () => fail(transaction.error ?? new Error("the browser keeps no more"));
    work(transaction);
  });
}

export const readSetting = (name) => memory ? memory.settings.get(name)
  : wait(database.transaction("settings").objectStore("settings").get(name));

export const writeSetting = (name, value) => memory ? void memory.settings.set(name, value)
  : change((t) => t.objectStore("settings").put(value, name));

export async function readAll(kind) {
  return memory ? [...memory[kind].values()] : wait(database.transaction(kind).objectStore(kind).getAll());
}

export async function readMessages(conversation) {
  if (memory) return [...memory.messages.values()].filter((m) => m.conversation === conversation);
  return wait(database.transaction("messages").objectStore("messages").index("conversation").getAll(conversation));
}

/* A conversation with some of its messages. */
export async function write(conversation, messages = []) {
  if (memory) {
    memory.conversations.set(conversation.id, conversation);
    for (const message of messages) memory.messages.set(message.id, message);
  } else {
    await change((t) => {
      t.objectStore("conversations").put(conversation);
      for (const message of messages) t.objectStore("messages").put(message);
    });
  }
  tell(conversation.id);
}

/* A message of a conversation, unless another tab has deleted that. */
export async function writeMessage(message) {
  if (memory) {
    if (memory.conversations.has(message.conversation)) memory.messages.set(message.id, message);
  } else {
    await change((t) => {
      const request = t.objectStore("conversations").getKey(message.conversation);
      request.onsuccess = () => request.result !== undefined && t.objectStore("messages").put(message);
    });
  }
  tell(message.conversation);
}

export async function removeMessages(conversation, ids) {
  if (memory) for (const id of ids) memory.messages.delete(id);
  else await change((t) => ids.forEach((id) => t.objectStore("messages").delete(id)));
  tell(conversation);
}

export async function removeConversation(id) {
  const ids = (await readMessages(id)).map((message) => message.id);
  if (memory) memory.conversations.delete(id);
  else await change((t) => t.objectStore("conversations").delete(id));
  await removeMessages(id, ids);
}
