/* Answers as Markdown: marked makes HTML of it, DOMPurify takes away all that could do something, highlight.js
 * colours code and KaTeX sets formulas. HTML that a model writes is shown as text. Blocks that have not changed
 * since the last call keep their elements. Without the libraries, text is shown as it is. */
import { copies, element, iconButton } from "./dom.js";

const { marked, DOMPurify } = window;
const MOST = 400_000; /* characters; what is longer is shown as text */
const MOST_COLOURED = 60_000;

/* --- Libraries that are only fetched when an answer needs them. --- */

const library = (() => {
  const fetched = new Map();
  const load = (name) => new Promise((done) => {
    const script = element("script", { src: "page/" + name + ".js" });
    script.onload = script.onerror = done;
    document.head.append(script);
  });
  return (name) => {
    if (!fetched.has(name)) fetched.set(name, load(name));
    return fetched.get(name);
  };
})();

/* --- Markdown to HTML. --- */

const escaped = (text) => text.replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`);

/* $x$ as Pandoc reads it, so that prices stay text; $$x$$, \(x\), \[x\]. */
const MATH = [
  [/^\$\$((?:\\[^]|[^$\\]){1,4000}?)\$\$/, true], [/^\\\[([^]{1,4000}?)\\\]/, true], [/^\\\(([^]{1,4000}?)\\\)/, false],
  [/^\$(?!\s)((?:\\[^\n]|[^$\\\n]){1,1000}?)(?<!\s)\$(?!\d)/, false],
];
function takeMath(source) {
  for (const [rule, display] of MATH) {
    const match = rule.exec(source);
    if (match) return { type: "math", raw: match[0], text: match[1].trim(), display };
  }
  return undefined;
}
const math = {
  name: "math", level: "inline",
  start: (source) => { const at = source.search(/\$|\\[([]/); return at < 0 ? undefined : at; },
  tokenizer: takeMath,
  renderer: ({ raw, display }) => `<span class="math${display ? " display" : ""}">${escaped(raw)}</span>`,
};
/* A formula that stands by itself may have empty lines and what looks like Markdown. */
const mathBlock = {
  name: "mathBlock", level: "block",
  start: (source) => { const at = source.search(/(^|\n)(\$\$|\\\[)/); return at < 0 ? undefined : at; },
  tokenizer(source) {
    const match = /^(?:\$\$((?:\\[^]|[^$\\]){1,4000}?)\$\$|\\\[([^]{1,4000}?)\\\])[ \t]*(?:\n|$)/.exec(source);
    return match ? { type: "mathBlock", raw: match[0], text: match[1] ?? match[2] } : undefined;
  },
  renderer: ({ raw }) => `<p><span class="math display">${escaped(raw.trim())}</span></p>`,
};

const HARMLESS = /^<\/?(?:br|sub|sup|u|kbd|b|i|em|strong|s|del)\s*\/?>$/i;
if (marked) marked.use({
  gfm: true, breaks: true, mangle: false, headerIds: false, silent: false,
  extensions: [mathBlock, math],
  renderer: {
    html: (text) => (HARMLESS.test(text.trim()) ? text : escaped(text.trim()).replace(/\n/g, "<br>")),
    heading: (text, depth) => `<h2 class="depth-${depth}">${text}</h2>`,
    image: (href, title, text) => `<a href="${escaped(href ?? "")}">${text || "image"}</a>`,
    checkbox: (checked) => (checked ? "☑ " : "☐ "),
  },
});

/* --- HTML to elements. --- */

const ALLOWED = {
  ALLOWED_TAGS: ["a", "b", "blockquote", "br", "code", "del", "div", "em", "h2", "hr", "i", "kbd", "li", "ol", "p", "pre", "s", "span",
    "strong", "sub", "sup", "table", "tbody", "td", "th", "thead", "tr", "u", "ul"],
  ALLOWED_ATTR: ["href", "title", "align", "start", "class"], ALLOW_DATA_ATTR: false, ALLOW_ARIA_ATTR: false,
  ALLOWED_URI_REGEXP: /^(?:https?|mailto):/i, ADD_URI_SAFE_ATTR: ["align", "start"], RETURN_DOM_FRAGMENT: true,
};
if (DOMPurify) DOMPurify.addHook("uponSanitizeAttribute", (node, attribute) => {
  if (attribute.attrName !== "class") return;
  attribute.keepAttr = attribute.attrValue.split(/\s+/).every((name) => /^(language-.*|hljs-.*|math|display|depth-\d)$/.test(name));
});

async function colour(code, language) {
  await library("highlight");
  const { hljs } = window;
  if (!hljs?.getLanguage(language)) return;
  code.replaceChildren(DOMPurify.sanitize(hljs.highlight(language, code.textContent, true).value, ALLOWED));
}

async function setFormula(span) {
  await library("katex");
  const found = takeMath(span.textContent);
  if (!window.katex || !found) return;
  const made = element("span");
  try {
    /* Not as HTML, whose styles the server's policy forbids: KaTeX sets those of elements. */
    window.katex.render(found.text, made, { displayMode: found.display, throwOnError: true, strict: "ignore", trust: false, maxSize: 50, maxExpand: 200 });
    span.replaceChildren(made);
  } catch { /* the source stays */ }
}

function frameCode(pre, finished) {
  const code = pre.firstElementChild ?? pre, language = /language-(\S+)/.exec(code.className)?.[1] ?? "";
  const text = code.textContent.replace(/\n$/, "");
  const head = element("div", { class: "code-head" }, element("span", {}, language || "text"),
    iconButton("copy", "Copy code", copies(() => text)));
  pre.tabIndex = 0;
  pre.replaceWith(element("div", { class: "code" }, head, pre.cloneNode(false)));
  head.nextSibling.append(code);
  code.textContent = text;
  if (finished && language && text.length < MOST_COLOURED) colour(code, language);
}

function complete(fragment, finished) {
  for (const link of fragment.querySelectorAll("a")) {
    if (link.hasAttribute("href")) {
      link.target = "_blank";
      link.rel = "noopener noreferrer";
    } else {
      link.replaceWith(...link.childNodes);
    }
  }
  for (const table of fragment.querySelectorAll("table")) {
    const frame = element("div", { class: "scroll", tabindex: 0 });
    table.replaceWith(frame);
    frame.append(table);
  }
  for (const pre of fragment.querySelectorAll("pre")) frameCode(pre, finished);
  for (const span of fragment.querySelectorAll(".math")) setFormula(span);
  return fragment;
}

const blockOf = (token, finished) =>
  element("div", { class: "block" }, complete(DOMPurify.sanitize(marked.parser([token]), ALLOWED), finished));

const shown = new WeakMap(); /* box: the blocks in it, {raw, finished, node} */

/* Shows the text in the box. `finished`: nothing more will come. */
export function showMarkdown(box, text, finished) {
  let tokens;
  try {
    if (!marked || !DOMPurify || text.length > MOST) throw new Error("as text");
    tokens = marked.lexer(text + "\n").filter(({ type }) => type !== "space" && type !== "def");
    const before = shown.get(box) ?? [];
    const blocks = tokens.map((token, i) => {
      const closed = finished || i < tokens.length - 1, old = before[i];
      if (old && old.raw === token.raw && old.closed === closed) return old;
      return { raw: token.raw, closed, node: blockOf(token, closed) };
    });
    shown.set(box, blocks);
    blocks.forEach(({ node }, i) => {
      if (box.childNodes[i] !== node) box.childNodes[i] ? box.childNodes[i].replaceWith(node) : box.append(node);
    });
    while (box.childNodes.length > blocks.length) box.lastChild.remove();
  } catch { /* also what is nested too deeply for the libraries */
    shown.delete(box);
    box.replaceChildren(element("div", { class: "plain" }, text));
  }
}
