/* The timeline of the next pass, from GET /timeline: a picture as `quipu trace` draws it. While nothing
 * runs the server has none to show, so the page asks again until the dialog is closed. */
import { $, save } from "./dom.js";
import { headers } from "./api.js";

const timeline = { asked: 0 };

const isOpen = (asked) => asked === timeline.asked && $("timeline").open;

/* The reply, once a pass has run; null: the dialog was closed, or the server refuses. */
async function recordPass(path, asked) {
  while (isOpen(asked)) {
    const response = await fetch(path, { headers: headers() });
    if (response.ok || !isOpen(asked)) return response;
    if (response.status !== 503 && response.status !== 429) {
      const { error } = await response.json().catch(() => ({}));
      throw new Error(error?.message ?? response.status + " " + response.statusText);
    }
    await new Promise((done) => setTimeout(done, 200));
  }
  return null;
}

async function withPass(path, use) {
  const asked = ++timeline.asked;
  $("timeline-note").textContent = "Waiting for a pass: ask the model something.";
  $("timeline-note").hidden = false;
  try {
    const response = await recordPass(path, asked);
    const text = await response?.text();
    if (!isOpen(asked)) return;
    $("timeline-note").hidden = true;
    use(text);
  } catch (error) {
    $("timeline-note").textContent = "There is no timeline: " + error.message;
  }
}

const showPass = () => withPass("timeline", (svg) => {
  $("timeline-picture").src = "data:image/svg+xml;charset=utf-8," + encodeURIComponent(svg);
  $("timeline-frame").hidden = false;
});

const savePass = () => withPass("timeline.html", (page) => save("timeline.html", "text/html", page));

$("timeline-open").addEventListener("click", () => {
  $("timeline-frame").hidden = true;
  $("timeline").showModal();
  showPass();
});
$("timeline-again").addEventListener("click", showPass);
$("timeline-save").addEventListener("click", savePass);
