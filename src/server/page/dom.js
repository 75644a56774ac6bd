/* Elements, and what browsers give only to pages of HTTPS, done in another way elsewhere. */

export const $ = (id) => document.getElementById(id);

/* An element with attributes (functions: handlers of events) and children. */
export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (typeof value === "function") made["on" + key] = value;
    else if (value === true) made.setAttribute(key, "");
    else if (value !== false && value !== undefined) made.setAttribute(key, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
  return made;
}

export const button = (label, click, attributes = {}) => element("button", { type: "button", click, ...attributes }, label);

export function icon(name) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg"), use = document.createElementNS(svg.namespaceURI, "use");
  use.setAttribute("href", "#icon-" + name);
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  svg.append(use);
  return svg;
}

/* A button that shows only a picture; its label is read out, and shown as a tip. */
export const iconButton = (name, label, click, attributes = {}) =>
  button(icon(name), click, { "aria-label": label, title: label, class: "flat", ...attributes });

/* navigator.clipboard exists only over HTTPS and on this computer. */
export async function copyText(text) {
  if (navigator.clipboard && isSecureContext) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch { /* not allowed; perhaps the older way is */ }
  }
  const field = element("textarea", { class: "unseen", "aria-hidden": "true" }), before = document.activeElement;
  const place = document.querySelector("dialog[open]") ?? document.body;
  field.value = text;
  place.append(field);
  field.focus();
  field.select();
  const copied = document.execCommand("copy");
  field.remove();
  before?.focus?.({ preventScroll: true });
  return copied;
}

/* A button's click handler that copies, and says on the button what came of it. */
export const copies = (text) => async (event) => {
  const pressed = event.currentTarget, label = pressed.getAttribute("aria-label"), copied = await copyText(text());
  pressed.classList.toggle("done", copied);
  pressed.setAttribute("aria-label", copied ? "Copied" : "Not allowed by the browser");
  say(copied ? "Copied." : "The browser does not allow copying.");
  setTimeout(() => {
    pressed.classList.remove("done");
    pressed.setAttribute("aria-label", label);
  }, 1500);
};

export function save(name, type, text) {
  const link = element("a", { download: name, href: URL.createObjectURL(new Blob([text], { type })) });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

/* A sentence at the edge of the page for some seconds, with something that can be done about it. */
let sayTimer = 0;
export function say(text, label = "", act = null) {
  $("toast").replaceChildren(text, ...(act ? [button(label, () => { $("toast").hidden = true; act(); })] : []));
  $("toast").hidden = false;
  clearTimeout(sayTimer);
  sayTimer = setTimeout(() => { $("toast").hidden = true; }, act ? 10000 : 4000);
}

/* crypto.randomUUID() is for HTTPS only, too. */
export const newId = () => [...crypto.getRandomValues(new Uint8Array(10))].map((byte) => byte.toString(16).padStart(2, "0")).join("");

/* Calls `act` once the calls have ceased for a while. */
export function settled(ms, act) {
  let timer = 0;
  return (...values) => {
    clearTimeout(timer);
    timer = setTimeout(act, ms, ...values);
  };
}
