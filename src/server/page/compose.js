/* The field where a message is written, and the text files that go with it. */
import { $, element, iconButton, say } from "./dom.js";

const MOST_BYTES = 4 << 20;
let files = [];

function grow() {
  $("input").style.height = "auto";
  $("input").style.height = $("input").scrollHeight + 2 + "px";
}

function showFiles() {
  $("files").replaceChildren(...files.map((file) => element("li", {}, file.name,
    iconButton("close", `Remove ${file.name}`, () => { files = files.filter((f) => f !== file); showFiles(); }))));
  $("files").hidden = !files.length;
}

async function readText(file) {
  if (file.size > MOST_BYTES) throw new Error("is larger than 4 MiB");
  const bytes = await file.arrayBuffer();
  let text;
  try { text = new TextDecoder("utf-8", { fatal: true }).decode(bytes); } catch { throw new Error("is not text in UTF-8"); }
  if (text.includes("\0")) throw new Error("is not text: it has bytes of value 0");
  return text;
}

export async function attach(list) {
  for (const file of [...list]) {
    try {
      files.push({ name: file.name, text: await readText(file) });
    } catch (error) {
      say(`${file.name} ${error.message}.`);
    }
  }
  showFiles();
}

/* `send(text, files)` is false: it cannot be sent now, and stays. */
export function startComposing(send) {
  const submit = (event) => {
    event?.preventDefault();
    const text = $("input").value.trim();
    if ((!text && !files.length) || !send(text, files)) return;
    $("input").value = "";
    files = [];
    showFiles();
    grow();
  };
  $("form").onsubmit = submit;
  $("input").oninput = grow;
  addEventListener("resize", grow);
  grow();
  $("input").onkeydown = (event) => {
    /* On a phone the key is the only one for a new line. */
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing && !matchMedia("(pointer: coarse)").matches) submit(event);
  };
  $("input").onpaste = (event) => {
    if (!event.clipboardData.files.length) return;
    event.preventDefault();
    attach(event.clipboardData.files);
  };
  $("attach").onclick = () => $("attach-file").click();
  $("attach-file").onchange = () => { attach($("attach-file").files); $("attach-file").value = ""; };
  $("chat").ondragover = (event) => { if (event.dataTransfer.types.includes("Files")) event.preventDefault(); };
  $("chat").ondrop = (event) => {
    if (!event.dataTransfer.files.length) return;
    event.preventDefault();
    attach(event.dataTransfer.files);
  };
}
