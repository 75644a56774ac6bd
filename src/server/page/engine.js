/* The engine as it runs, from GET /engine twice a second: figures, pages, the tree of prefixes as a
 * quipu, sequences, passes. What the server does not tell is left out. The panel is closed until it is asked for. */
import { $ } from "./dom.js";
import { forModel, headers, server } from "./api.js";
import { state as chat } from "./chat.js";
import { pathTo } from "./tree.js";

const drawing = (() => {
  const svg = (name, attributes, ...children) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children);
    return made;
  };
  const html = (name, className, ...children) => {
    const made = document.createElement(name);
    if (className) made.className = className;
    made.append(...children);
    return made;
  };
  const count = (n) => Number(n).toLocaleString("en");
  const titled = (node, text) => (node.append(svg("title", {}, text)), node);
  const legend = (id, ...rows) => $(id).replaceChildren(...rows.map(([kind, text]) =>
    html("span", "", html("i", kind), text)));

  /* --- Figures, and tokens a second of the last minute. --- */

  function figures(rows) {
    $("figures").replaceChildren(...rows.map(([name, value]) =>
      html("div", "", html("dt", "", name), html("dd", "", value))));
  }

  function rate(values) {
    const width = $("rate").clientWidth, height = 46, most = Math.max(10, ...values);
    const at = (v, i) => `${(i * width / 119).toFixed(1)},${(height - v / most * (height - 4)).toFixed(1)}`;
    const points = values.map((v, i) => at(v, i + 120 - values.length));
    const left = ((120 - values.length) * width / 119).toFixed(1);
    $("rate").setAttribute("viewBox", `0 0 ${width} 48`);
    $("rate").replaceChildren(
      svg("line", { class: "axis", x1: 0, x2: width, y1: height, y2: height }),
      svg("polygon", { class: "area", points: `${left},${height} ${points.join(" ")} ${width},${height}` }),
      svg("polyline", { class: "line", points: points.join(" ") }));
  }

  /* --- Bars. --- */

  function bar(box, total, parts) {
    while (box.children.length > parts.length) box.lastChild.remove();
    while (box.children.length < parts.length) box.append(html("i"));
    parts.forEach(([kind, amount], i) => {
      box.children[i].className = kind;
      box.children[i].style.width = (total ? 100 * Math.min(amount, total) / total : 0) + "%";
    });
  }

  function pages(p) {
    $("pages-text").textContent = `${count(p.total)} pages of ${p.size} positions`;
    bar($("pages"), p.total, [["decode", p.used], ["cached", p.cached]]);
    legend("pages-legend", ["decode", count(p.used) + " in use"], ["cached", count(p.cached) + " kept for prefixes"],
      ["free", count(Math.max(p.total - p.used - p.cached, 0)) + " free"]);
  }

  const bytes = (n) => n >= 1e9 ? (n / 1e9).toFixed(1) + " GB" : n >= 1e6 ? Math.round(n / 1e6) + " MB" : Math.ceil(n / 1e3) + " kB";

  function memory(m) {
    $("memory-text").textContent = [m.weights && "weights " + bytes(m.weights), m.kv_cache && "KV cache " + bytes(m.kv_cache),
      m.process && "process " + bytes(m.process)].filter(Boolean).join(", ");
  }

  /* Of the conversation that is shown, when its last answer ended. */
  function context(used, most) {
    $("context-text").textContent = `${count(used)} of ${count(most)} positions in this conversation`;
    bar($("context"), most, [["decode", used]]);
  }

  /* --- The tree: a cord for each node with a knot for each page; what a sequence has alone hangs from
   * the node that it shares. --- */

  function cords(nodes, sequences) {
    const byId = new Map([[0, { id: 0, pages: 0, children: [] }]]);
    for (const node of nodes) byId.set(node.id, { ...node, kind: node.users > 1 ? "held" : node.users ? "own" : "", children: [] });
    for (const node of nodes) (byId.get(node.parent) ?? byId.get(0)).children.push(byId.get(node.id));
    for (const s of sequences) {
      const node = byId.get(s.node) ?? byId.get(0);
      let shared = 0;
      for (let up = node; up && up.id; up = byId.get(up.parent)) shared += up.pages;
      if (s.pages > shared)
        node.children.push({ kind: "own", pages: s.pages - shared, children: [], name: "sequence " + s.id });
    }
    return byId.get(0);
  }

  /* Leaves get columns from left to right, and a node hangs over the middle of its children. */
  function place(node, depth, columns) {
    node.top = depth;
    if (!node.children.length) node.x = columns.next++;
    for (const child of node.children) place(child, depth + node.pages, columns);
    if (node.children.length) node.x = (node.children[0].x + node.children.at(-1).x) / 2;
    columns.depth = Math.max(columns.depth, depth + node.pages);
  }

  function drawCord(node, parent, scale, out) {
    const x = scale.x(node.x), top = scale.y(node.top), bottom = scale.y(node.top + node.pages);
    const from = parent.id === 0 ? [x, scale.y(0) - 10] : [scale.x(parent.x), top];
    out.push(titled(svg("path", { class: "cord " + node.kind,
      d: `M${from} C${from[0]},${top + 6} ${x},${top - 2} ${x},${top + 8} V${Math.max(bottom, top + 8)}` }),
      `${node.name ?? (node.users ? "held by " + node.users : "kept")}: ${count(node.pages)} pages`));
    if (scale.step >= 4)
      for (let i = 0; i < node.pages; i++)
        out.push(svg("circle", { class: "knot " + node.kind, cx: x, cy: scale.y(node.top + i + 0.5) + 4, r: Math.min(scale.step / 2.6, 3) }));
    for (const child of node.children) drawCord(child, node, scale, out);
  }

  function tree(nodes, sequences) {
    const root = cords(nodes, sequences), columns = { next: 0, depth: 1 }, out = [];
    place(root, 0, columns);
    const height = 200, step = Math.min(9, (height - 30) / columns.depth);
    const frame = $("tree-frame").clientWidth, gap = Math.min(40, Math.max(9, (frame - 24) / Math.max(columns.next, 1)));
    const width = Math.max(frame, columns.next * gap + 24);
    const scale = { step, x: (c) => 12 + (c + 0.5) * gap, y: (d) => 18 + d * step };
    for (const child of root.children) drawCord(child, root, scale, out);
    $("tree").setAttribute("viewBox", `0 0 ${width} ${height}`);
    $("tree").style.width = width + "px";
    $("tree").style.height = root.children.length ? height + "px" : "24px";
    $("tree").replaceChildren(svg("line", { class: "cord main", x1: 4, x2: width - 4, y1: 8, y2: 8 }), ...out);
    const held = nodes.filter((n) => n.users).length;
    $("tree-text").textContent = nodes.length ? `${count(nodes.length)} ${nodes.length === 1 ? "part" : "parts"}, ${count(held)} in use` : "none yet";
    legend("tree-legend", ["prompt", "shared by several"], ["decode", "of one sequence"], ["cached", "kept"]);
  }

  /* --- Sequences and passes. --- */

  function sequence(s) {
    const total = Math.max(s.prompt_tokens + (s.max_tokens || s.generated), s.positions, 1);
    const box = html("div", "bar"), read = Math.max(Math.min(s.positions, s.prompt_tokens) - s.cached_tokens, 0);
    bar(box, total, [["cached", s.cached_tokens], ["prompt", read], ["decode", s.generated]]);
    const text = s.state === "decoding" ? `${count(s.generated)} made` :
      s.state === "prompt" ? `${count(Math.min(s.positions, s.prompt_tokens))} of ${count(s.prompt_tokens)}` : s.state;
    return html("div", "sequence", html("span", "", s.id + (s.choice ? "." + s.choice : "")), box, html("span", "", text));
  }

  function sequences(list, queue) {
    $("sequences-text").textContent = queue ? `${count(queue.running)} running, ${count(queue.waiting)} waiting` : "";
    $("sequences").replaceChildren(...list.slice(0, 24).map(sequence),
      ...(list.length > 24 ? [html("p", "soft", `and ${count(list.length - 24)} more`)] : []));
  }

  function passes(list) {
    const width = $("passes").clientWidth, height = 62, gap = width / 64;
    const most = Math.max(1, ...list.map((p) => Math.sqrt(p.prompt_tokens + p.decode_tokens)));
    const tall = (n) => Math.sqrt(n) / most * (height - 2);
    $("passes").setAttribute("viewBox", `0 0 ${width} 64`);
    $("passes").replaceChildren(svg("line", { class: "axis", x1: 0, x2: width, y1: height, y2: height }),
      ...list.slice(-64).map((p, i) => {
        const total = tall(p.prompt_tokens + p.decode_tokens), decode = total * p.decode_tokens / Math.max(p.prompt_tokens + p.decode_tokens, 1);
        const place = { x: i * gap + 0.5, width: Math.max(gap - 1, 1) };
        return titled(svg("g", {},
          svg("rect", { class: "prompt", ...place, y: height - total, height: total - decode }),
          svg("rect", { class: "decode", ...place, y: height - decode, height: decode })),
          `${p.ms.toFixed(2)} ms: ${count(p.prompt_tokens)} tokens of prompts, ${count(p.decode_tokens)} of answers, ${count(p.sequences)} sequences`);
      }));
    const last = list.at(-1);
    $("passes-text").textContent = last ? `the last took ${last.ms.toFixed(1)} ms` : "none yet";
    legend("passes-legend", ["prompt", "tokens of prompts"], ["decode", "tokens of answers"]);
  }

  return { figures, rate, pages, memory, context, tree, sequences, passes, count };
})();

/* --- Asking. --- */

const engineState = { samples: [], rates: [] };

/* Tokens a second over the last two seconds or so. */
function currentRate(state) {
  const samples = engineState.samples, total = state.totals?.generated_tokens ?? 0;
  samples.push([state.time, total]);
  while (samples.length > 5) samples.shift();
  const [time, before] = samples[0];
  const rate = state.time > time ? Math.max(total - before, 0) / (state.time - time) : 0;
  engineState.rates = [...engineState.rates, rate].slice(-120);
  return rate;
}

function showEngine(state) {
  const rate = currentRate(state), totals = state.totals ?? {};
  drawing.figures([
    ["tokens/s", rate >= 100 ? drawing.count(Math.round(rate)) : rate.toFixed(1)],
    ["ms to first", totals.last_ttft_ms ? drawing.count(Math.round(totals.last_ttft_ms)) : "–"],
    ["running", drawing.count(state.queue?.running ?? 0)],
    ["waiting", drawing.count(state.queue?.waiting ?? 0)],
  ]);
  drawing.rate(engineState.rates);
  drawing.memory(state.memory ?? {});
  drawing.context(pathTo(chat.current).findLast((m) => m.positions)?.positions ?? 0, state.context ?? server.context);
  if (state.pages) drawing.pages(state.pages);
  drawing.tree(state.tree ?? [], state.sequences ?? []);
  drawing.sequences(state.sequences ?? [], state.queue);
  drawing.passes(state.passes ?? []);
}

async function poll() {
  if ($("engine").hidden) return;
  try {
    if (!document.hidden) {
      const response = await fetch(forModel("engine"), { headers: headers() });
      $("engine-note").hidden = response.ok;
      if (response.ok) showEngine(await response.json());
      else $("engine-note").textContent = "The engine is not shown: " + response.status + " " + response.statusText;
    }
  } catch {
    $("engine-note").hidden = false;
    $("engine-note").textContent = "The server does not answer.";
  }
  engineState.timer = setTimeout(poll, 500);
}

$("engine-toggle").onclick = () => {
  const open = $("engine").hidden;
  $("engine").hidden = !open;
  document.body.classList.toggle("engine", open);
  $("engine-toggle").setAttribute("aria-expanded", open);
  clearTimeout(engineState.timer);
  poll();
};
