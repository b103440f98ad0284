"use strict";
// The timeline of a run. Every text of the run becomes a text node; no markup is parsed.

const FOLDED_LINES = 40;
const CHUNK = 150;
const byId = (id) => document.getElementById(id);
const state = { entries: [], filter: "all", query: "", current: -1, rendered: 0, unfolds: false };

// Control sequences of terminals are left out; other invisible characters are shown as their codes.
const SEQUENCES = /\u001b\[[0-?]*[ -/]*[@-~]|\u001b\][^\u0007\u001b]*(?:\u0007|\u001b\\)/g;
const INVISIBLE = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;
const visible = (text) =>
  String(text).replace(SEQUENCES, "").replace(/\r\n?/g, "\n")
    .replace(INVISIBLE, (c) => "\\u{" + c.charCodeAt(0).toString(16) + "}");

function element(tag, name, ...children) {
  const node = document.createElement(tag);
  if (name) node.className = name;
  node.append(...children.filter((child) => child !== ""));
  return node;
}

const seconds = (s) => {
  if (s < 60) return s.toFixed(s < 1 ? 2 : 1) + " s";
  const pad = (n) => String(Math.floor(n)).padStart(2, "0");
  return s < 3600 ? Math.floor(s / 60) + ":" + pad(s % 60)
    : Math.floor(s / 3600) + ":" + pad((s / 60) % 60) + ":" + pad(s % 60);
};
const count = (n) => n < 1000 ? String(n) : n < 999500 ? (n / 1e3).toFixed(n < 99950 ? 1 : 0) + "k" : (n / 1e6).toFixed(1) + "M";
const sum = (...numbers) => numbers.reduce((total, n) => total + (n || 0), 0);

// ---- text -------------------------------------------------------------------------------------

function block(text, name) {
  const lines = visible(text).replace(/\n+$/, "").split("\n");
  const pre = element("pre", name);
  if (lines.length <= FOLDED_LINES + 5) {
    pre.textContent = lines.join("\n");
    return [pre];
  }
  pre.textContent = lines.slice(0, FOLDED_LINES).join("\n");
  const more = element("button", "more", `Show all ${lines.length} lines`);
  more.type = "button";
  more.addEventListener("click", () => {
    pre.textContent = lines.join("\n");
    more.remove();
  });
  return [pre, more];
}

function inline(text) {
  return text.split(/(`[^`\n]+`|\*\*[^*\n]+\*\*)/).filter(Boolean).map((part) => {
    if (part.length > 2 && part.startsWith("`") && part.endsWith("`")) return element("code", "", part.slice(1, -1));
    if (part.length > 4 && part.startsWith("**") && part.endsWith("**")) return element("strong", "", part.slice(2, -2));
    return part;
  });
}

// Headings, lists, code and emphasis of Markdown; links and images stay as they were written.
function prose(text) {
  const nodes = [];
  let paragraph = [], list = null, fence = null, code = [];
  const flush = () => {
    if (paragraph.length) nodes.push(element("p", "", ...inline(paragraph.join("\n"))));
    paragraph = [];
    list = null;
  };
  for (const line of visible(text).split("\n")) {
    const mark = line.match(/^\s*(`{3,}|~{3,})/);
    if (fence) {
      if (mark && mark[1].startsWith(fence)) { nodes.push(...block(code.join("\n"))); fence = null; code = []; }
      else code.push(line);
      continue;
    }
    const heading = line.match(/^#{1,6} +(.+)/), item = line.match(/^\s*[-*] +(.+)/);
    if (mark) { flush(); fence = mark[1]; }
    else if (heading) { flush(); nodes.push(element("h3", "", ...inline(heading[1]))); }
    else if (item) {
      if (!list) { flush(); list = element("ul"); nodes.push(list); }
      list.append(element("li", "", ...inline(item[1])));
    } else if (!line.trim()) flush();
    else { list = null; paragraph.push(line); }
  }
  if (fence) nodes.push(...block(code.join("\n")));
  flush();
  return nodes;
}

function command(result) {
  const parts = result.match(/^<shell_results>\n([^]*?)<stdout>([^]*)<\/stdout>\n<stderr>([^]*)<\/stderr>([^]*)\n<\/shell_results>$/);
  if (!parts) return null;
  const find = (name) => (parts[1].match(new RegExp(`<${name}>([^]*?)</${name}>`)) || [])[1];
  return { code: find("exit_code"), error: find("error_kind"), stdout: parts[2], stderr: parts[3] };
}

function values(args) {
  if (args === null || typeof args !== "object" || Array.isArray(args)) return block(typeof args === "string" ? args : JSON.stringify(args, null, 2));
  const nodes = [];
  for (const [name, value] of Object.entries(args)) {
    nodes.push(element("div", "label", visible(name)));
    nodes.push(...block(typeof value === "string" ? value : JSON.stringify(value, null, 2)));
  }
  return nodes;
}

// ---- entries ----------------------------------------------------------------------------------

// Returns the entries of the timeline: { kind, failed, depth, text, row(), body() }, in order.
function entries({ events }) {
  const list = [], agents = new Map();
  for (const event of events) {
    const { run, depth } = event;
    const agent = depth ? agents.get(run) || "" : "";
    const add = (entry) => { list.push({ depth, agent, failed: false, ...entry }); return list.at(-1); };
    const note = (name, text, failed = false) => add({ kind: "note", name, gist: text, failed, text: name + " " + text });
    switch (event.event) {
      case "run_started":
        agents.set(run, event.agent);
        if (depth) add({ kind: "note", name: "Start", agent: event.agent, gist: event.task, text: event.task, body: () => prose(event.task) });
        break;
      case "model_answered": {
        const usage = event.usage, about = event.usage_estimated ? "~" : "";
        const facts = [seconds(event.duration_s),
          `${about}${count(sum(usage.input, usage.cache_read, usage.cache_write))} in · ${about}${count(sum(usage.answer, usage.reasoning))} out`];
        if (event.cost_usd != null) facts.push("$" + event.cost_usd.toFixed(4));
        add({ kind: "model", name: "Turn " + event.turn, facts, text: event.text, prose: event.text });
        break;
      }
      case "tool_call": {
        const args = event.arguments ?? {};
        const entry = add({ kind: "call", name: event.tool, args, images: event.images || [], text: event.tool + " " + JSON.stringify(args) });
        if (event.result === undefined) break;
        const shell = command(event.result);
        const end = !event.has_run ? "not run"
          : shell ? (shell.code !== undefined ? "exit " + visible(shell.code) : visible(shell.error || "failed"))
          : event.success ? "done" : "failed";
        Object.assign(entry, {
          failed: !event.success || Boolean(shell && shell.code !== undefined && shell.code !== "0"),
          facts: [end, seconds(event.duration_s)], result: event.result, shell,
          text: entry.text + " " + event.result,
        });
        break;
      }
      case "warning": note("Warning", event.message); break;
      case "model_retry": note("Retry", event.reason, true); break;
      case "turn_dropped": note("Turn dropped", `Turn ${event.turn} did not fit into the context window.`); break;
      case "history_summarized": add({ kind: "note", name: "Summary", gist: `replaces ${event.replaced} messages`, text: event.text, body: () => prose(event.text) }); break;
      case "run_resumed": note("Resumed", `after ${event.turns} turns`); break;
      case "user_message": add({ kind: "note", name: "To the model", gist: event.text, text: event.text, body: () => prose(event.text) }); break;
      case "output_saved": note("Saved", event.path || event.source); break;
      case "output_refused": note("Refused", event.source + ": " + event.reason, true); break;
      case "run_finished":
        note("End", event.status.replaceAll("_", " ") + (event.error ? ": " + event.error : ""), Boolean(event.error));
        break;
    }
  }
  return list;
}

function callBody(entry) {
  const cmd = entry.args && typeof entry.args === "object" ? entry.args.cmd : undefined;
  const others = cmd === undefined ? entry.args : Object.fromEntries(Object.entries(entry.args).filter(([name]) => name !== "cmd"));
  const nodes = cmd === undefined ? [] : [...block(cmd)];
  if (cmd === undefined || Object.keys(others).length) nodes.push(...values(others));
  if (entry.result === undefined) return [...nodes, element("div", "label", "The call did not end.")];
  if (entry.shell) {
    if (entry.shell.stdout.trim()) nodes.push(element("div", "label", "Output"), ...block(entry.shell.stdout));
    if (entry.shell.stderr.trim()) nodes.push(element("div", "label", "Error output"), ...block(entry.shell.stderr, "stderr"));
  } else if (entry.result.trim()) nodes.push(element("div", "label", "Result"), ...block(entry.result));
  for (const url of entry.images || []) {
    if (!/^data:image\/(png|jpeg|gif|webp);base64,/.test(url)) continue;
    const image = element("img");
    image.src = url;
    image.alt = "Image in the result of " + visible(entry.name);
    image.loading = "lazy";
    nodes.push(image);
  }
  return nodes;
}

function gist(entry) {
  if (entry.gist !== undefined) return entry.gist;
  if (entry.kind !== "call" || entry.args === null) return "";
  const args = entry.args;
  if (typeof args !== "object") return String(args);
  const first = args.cmd ?? Object.values(args).find((value) => typeof value === "string");
  return first === undefined ? JSON.stringify(args) : String(first);
}

function render(entry) {
  const nested = entry.depth ? (entry.depth > 1 ? " nested deep" : " nested") : "";
  const name = element("span", "name", visible(entry.name));
  if (entry.agent) name.append(element("span", "agent", " · " + visible(entry.agent)));
  const line = visible(gist(entry)).trim().replace(/\s+/g, " ");
  const row = [name, element("span", "gist", line.length > 240 ? line.slice(0, 240) + "…" : line)];
  if (entry.facts) row.push(element("span", entry.failed ? "facts bad" : "facts", entry.facts.join(" · ")));
  if (entry.kind === "model") {
    entry.node = element("article", "entry turn" + nested, element("div", "row", ...row));
    const body = prose(entry.prose);
    if (body.length) entry.node.append(element("div", "body", ...body));
  } else if (entry.kind === "call" || (entry.body && /\n|.{80}/.test(entry.gist))) {
    entry.node = element("details", `entry ${entry.kind}${nested}`, element("summary", "row", ...row));
    entry.fill = () => {
      entry.fill = () => {};
      entry.node.append(element("div", "body", ...(entry.body ? entry.body() : callBody(entry))));
    };
    entry.node.addEventListener("toggle", () => { if (entry.node.open) entry.fill(); });
  } else entry.node = element("div", `entry ${entry.kind}${nested}`, element("div", "row", ...row));
  entry.node.hidden = !shown(entry);
  return entry.node;
}

// Adds entries in pieces, so that the page can be used while a long run is added.
function renderMore() {
  const next = state.entries.slice(state.rendered, state.rendered + CHUNK);
  if (!next.length) {
    // For printing: report.html#open
    if (state.unfolds) for (const node of document.querySelectorAll("details")) node.open = true;
    return;
  }
  byId("list").append(...next.map(render));
  state.rendered += next.length;
  setTimeout(renderMore);
}

function change({ path, added, removed, patch }) {
  const row = element("summary", "row", element("span", "gist", visible(path)),
    element("span", "facts", element("span", "add", "+" + added), " ", element("span", "del", "−" + removed)));
  const details = element("details", "entry", row);
  details.addEventListener("toggle", () => {
    const pre = element("pre");
    // A change of line ends would show equal lines.
    for (const line of visible(patch.replaceAll("\r", "\\u{d}")).split("\n")) {
      const name = line.startsWith("+") ? "add" : line.startsWith("-") ? "del" : line.startsWith("@@") ? "hunk" : "";
      pre.append(element("span", name, line + "\n"));
    }
    details.append(element("div", "body", pre));
  }, { once: true });
  return details;
}

// ---- search and keys --------------------------------------------------------------------------

function shown(entry) {
  if (state.filter === "failed" ? !entry.failed : state.filter !== "all" && entry.kind !== state.filter) return false;
  if (!state.query) return true;
  entry.lower ??= (entry.name + " " + (entry.agent || "") + " " + visible(entry.text)).toLowerCase();
  return entry.lower.includes(state.query);
}

function update() {
  let found = 0;
  for (const entry of state.entries) {
    const is = shown(entry);
    found += is;
    if (entry.node) entry.node.hidden = !is;
  }
  const all = state.entries.length;
  byId("count").textContent = found === all ? `${all} entries` : `${found} of ${all}`;
  for (const button of byId("filters").children) button.setAttribute("aria-pressed", String(button.dataset.filter === state.filter));
  if (state.current >= 0) state.entries[state.current].node?.classList.remove("current");
  state.current = -1;
  highlight();
}

// Marks what was found, where the browser can without changing the text.
function highlight() {
  if (!window.Highlight || !CSS.highlights) return;
  CSS.highlights.delete("found");
  if (!state.query) return;
  const ranges = [], walker = document.createTreeWalker(byId("list"), NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node && ranges.length < 500; node = walker.nextNode()) {
    const text = node.data.toLowerCase();
    for (let at = text.indexOf(state.query); at >= 0 && ranges.length < 500; at = text.indexOf(state.query, at + 1)) {
      if (at + state.query.length > node.length) break;
      const range = new Range();
      range.setStart(node, at);
      range.setEnd(node, at + state.query.length);
      ranges.push(range);
    }
  }
  CSS.highlights.set("found", new Highlight(...ranges));
}

function move(step) {
  let index = state.current;
  do index += step; while (state.entries[index]?.node?.hidden);
  const entry = state.entries[index];
  if (!entry?.node) return;
  state.entries[state.current]?.node.classList.remove("current");
  state.current = index;
  entry.node.classList.add("current");
  entry.node.scrollIntoView({ block: "nearest" });
}

function unfoldAll() {
  const folded = state.entries.filter((entry) => entry.fill && !entry.node.hidden);
  const open = folded.some((entry) => !entry.node.open);
  for (const entry of folded) entry.node.open = open;
}

function search(text) {
  state.query = text.trim().toLowerCase();
  update();
}

function filter(name) {
  state.filter = name;
  update();
}

function listen() {
  const input = byId("search");
  let timer;
  input.addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(() => search(input.value), 120); });
  byId("tools").addEventListener("submit", (event) => { event.preventDefault(); search(input.value); });
  byId("filters").addEventListener("click", (event) => { if (event.target.dataset.filter) filter(event.target.dataset.filter); });
  byId("list").addEventListener("toggle", () => { if (state.query) highlight(); }, true);
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") { input.value = ""; input.blur(); state.filter = "all"; search(""); return; }
    if (event.target === input || event.ctrlKey || event.metaKey || event.altKey) return;
    const keys = {
      "/": () => { input.focus(); input.select(); },
      j: () => move(1),
      k: () => move(-1),
      o: () => { const node = state.entries[state.current]?.node; if (node?.tagName === "DETAILS") node.open = !node.open; },
      e: unfoldAll,
      f: () => filter(state.filter === "failed" ? "all" : "failed"),
    };
    if (keys[event.key]) { event.preventDefault(); keys[event.key](); }
  });
}

async function main() {
  const encoded = byId("data").textContent.trim();
  const bytes = Uint8Array.from(atob(encoded), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const data = JSON.parse(await new Response(stream).text());
  state.entries = entries(data);
  const answer = document.querySelector("#answer .prose");
  if (answer) answer.replaceChildren(...prose(answer.textContent));
  for (const patch of data.changes) byId("changes").append(change(patch));
  byId("changes").hidden = !data.changes.length;
  // A search can be part of the address: report.html#search=error
  const parameters = new URLSearchParams(location.hash.slice(1));
  const asked = parameters.get("search");
  state.unfolds = parameters.has("open");
  if (asked) byId("search").value = asked;
  listen();
  renderMore();
  search(asked || "");
}

main().catch((error) => byId("list").append(element("p", "panel bad", "The timeline can't be shown: " + error.message)));
