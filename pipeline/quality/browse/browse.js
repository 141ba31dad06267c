"use strict";
// The page of `pipeline browse`. Whatever comes from the corpus is put into text nodes; the page's policy lets no text
// become markup. Answers are lines of JSON: how far the work is, then {done} or {error}.

const byId = (id) => document.getElementById(id);
const AUTOBLEU_PLACES = 1, PLACES = 4, MOST_FILTER = 300;
const KEYWORDS = new Set(["and", "or", "not", "in", "is", "null", "true", "false"]);
let corpus = null;                    // what /corpus says
let columns = new Map();              // by name
let asked = null;                     // the question: where, sort, down, start, count, shown
let page = null;                      // the answer that is shown
let waiting = null, panelWaiting = null;  // AbortControllers
let opened = null;                    // {part, row} in the panel
let trail = [];                       // rows that were looked at before it, in the panel

function element(tag, options = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(options)) {
    if (name === "class") made.className = value;
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children.filter((one) => one !== null && one !== undefined));
  return made;
}

function whole(value) { return String(value).replace(/\B(?=(\d{3})+(?!\d))/g, "\u202f"); }
function counted(value, noun) { return `${whole(value)} ${noun}${value === 1 ? "" : "s"}`; }

function shown(name, value, exact = false) {
  if (value === null || value === undefined) return "–";
  if (typeof value === "number") {
    if (Number.isInteger(value)) return Math.abs(value) >= 10000 ? whole(value) : String(value);
    if (exact) return String(Number(value.toPrecision(7)));
    return name === "autobleu" ? value.toFixed(AUTOBLEU_PLACES) : String(Number(value.toPrecision(PLACES)));
  }
  return String(value);
}

async function ask(path, parameters, signal, progress = () => {}) {
  let response;
  try {
    response = await fetch(`${path}?${new URLSearchParams(parameters)}`, {signal});
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The program does not answer any more; start pipeline browse again.");
  }
  if (!response.ok) throw new Error((await response.text()) || `The program answered ${response.status}.`);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const {done, value} = await reader.read();
    if (done) break;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      const said = JSON.parse(line);
      if ("done" in said) return said.done;
      if ("error" in said) throw Object.assign(new Error(said.error), {ofFilter: said.where});
      progress(said);
    }
  }
  throw new Error("The answer broke off; look at the terminal of pipeline browse.");
}

// The question, in the address of the page: back, forward and reload work

function fromAddress() {
  const given = new URLSearchParams(location.search);
  const number = (name, other) => /^\d{1,12}$/.test(given.get(name) || "") ? Number(given.get(name)) : other;
  const count = number("count", corpus.pages[1]);
  return {
    where: given.get("where") || "", sort: given.get("sort") || "", down: given.get("down") === "1",
    start: number("start", 0), count: corpus.pages.includes(count) ? count : corpus.pages[1],
    shown: given.has("columns") ? given.get("columns").split("\t").filter((name) => columns.has(name)) : corpus.shown,
  };
}

function toAddress(question) {
  const said = new URLSearchParams();
  if (question.where) said.set("where", question.where);
  if (question.sort) said.set("sort", question.sort);
  if (question.down) said.set("down", "1");
  if (question.start) said.set("start", question.start);
  if (question.count !== corpus.pages[1]) said.set("count", question.count);
  if (question.shown.join("\t") !== corpus.shown.join("\t")) said.set("columns", question.shown.join("\t"));
  const text = said.toString();
  return text ? `?${text}` : location.pathname;
}

function change(changes, keep = false) {
  const next = {...asked, start: 0, ...changes};
  history.pushState(null, "", toAddress(next));
  asked = next;
  return look({top: !keep});
}

async function look({top = false, all = false} = {}) {
  if (waiting) waiting.abort();
  const mine = waiting = new AbortController();
  drawQuestion();
  const question = {columns: asked.shown.join("\t"), start: asked.start, count: asked.count};
  if (asked.where.trim()) question.where = asked.where;
  if (asked.sort) question.sort = asked.sort;
  if (asked.sort && asked.down) question.down = "1";
  if (all) question.all = "1";
  const began = performance.now();
  byId("wrong").hidden = true;
  byId("where").removeAttribute("aria-invalid");
  const slow = setTimeout(() => busy({read: 0, found: 0}), 250);
  let last = {read: 0, found: 0};
  try {
    const answer = await ask("rows", question, mine.signal, (said) => { last = said; busy(said); });
    if (waiting !== mine) return;
    if (answer.opened !== corpus.opened) await renew();
    if (waiting !== mine) return;
    page = {...answer, seconds: (performance.now() - began) / 1000};
    clearTimeout(slow);
    idle();
    drawRows();
    if (top && byId("rows").getBoundingClientRect().top < 0) byId("bar").scrollIntoView({block: "start"});
  } catch (error) {
    if (waiting !== mine && error.name === "AbortError") return;
    clearTimeout(slow);
    idle();
    if (error.name === "AbortError") {
      byId("status").textContent = `Stopped after ${counted(last.read, "row")}. Apply ${asked.sort ? "begins again" : "goes on from there"}.`;
      byId("main").classList.add("old");
    } else {
      byId("wrong").textContent = error.message;
      byId("wrong").hidden = false;
      if (error.ofFilter) byId("where").setAttribute("aria-invalid", "true");
      byId("status").textContent = "";
      byId("all").hidden = true;
      byId("main").classList.add("old");
    }
  } finally {
    clearTimeout(slow);
  }
}

function busy(said) {
  const bar = byId("progress");
  bar.hidden = byId("stop").hidden = false;
  byId("all").hidden = true;
  bar.max = corpus.rows;
  bar.value = said.read;
  byId("status").textContent = "";  // which is read out, unlike what follows
  byId("doing").textContent = `Looked at ${whole(said.read)} of ${counted(corpus.rows, "row")}; ${whole(said.found)} found`;
  byId("main").classList.add("old");
}

function idle() {
  byId("progress").hidden = byId("stop").hidden = true;
  byId("doing").textContent = "";
  byId("main").classList.remove("old");
}

function drawQuestion() {
  byId("where").value = asked.where;
  grow();
  byId("clear").hidden = !asked.where;
  byId("sort").value = asked.sort;
  byId("down").hidden = !asked.sort;
  byId("down").textContent = asked.down ? "↓ highest first" : "↑ lowest first";
  byId("down").setAttribute("aria-pressed", String(asked.down));
  byId("count").value = String(asked.count);
  for (const box of document.querySelectorAll("#choices input")) box.checked = asked.shown.includes(box.value);
}

function said() {
  const rows = page.rows.length;
  if (!rows && !page.found) return `No row satisfies the filter; all ${whole(page.read)} were looked at`;
  const range = rows ? `Rows ${whole(page.start + 1)}–${whole(page.start + rows)}` : "No row here";
  if (page.whole) return `${range} of ${whole(page.found)}${asked.where.trim() ? ` that satisfy the filter, of ${whole(corpus.rows)}` : ""}`;
  return `${range}; ${whole(page.found)} found in the first ${whole(page.read)} of ${counted(corpus.rows, "row")}`;
}

function drawRows() {
  byId("status").textContent = `${said()}. ${page.seconds.toFixed(page.seconds < 10 ? 2 : 0)} s`;
  byId("all").hidden = page.whole;
  const head = element("tr", {}, element("th", {scope: "col", class: "at"}, "row"),
    element("th", {scope: "col", class: "sentence"}, corpus.decoded ? "sentence, and what its embedding decodes to" : "sentence"));
  for (const name of asked.shown) head.append(heading(name));
  byId("head").replaceChildren(head);
  byId("body").replaceChildren(...page.rows.map(drawRow));
  const more = page.found > page.start + page.rows.length;
  byId("pager").hidden = false;
  byId("first").disabled = byId("previous").disabled = !page.start;
  byId("next").disabled = !more;
  byId("place").textContent = page.rows.length ? `${whole(page.start + 1)}–${whole(page.start + page.rows.length)}` : "";
  mark();
}

function heading(name) {
  const column = columns.get(name), sorted = asked.sort === name;
  const cell = element("th", {scope: "col", class: `${column.number ? "n" : ""}${sorted ? " sorted" : ""}`, "aria-sort": sorted ? (asked.down ? "descending" : "ascending") : null});
  if (!column.ordered) cell.append(name);
  else cell.append(element("button", {type: "button", title: `Sort by ${name}`, onclick: () => sortBy(name)},
    name, element("span", {"aria-hidden": "true"}, sorted ? (asked.down ? " ↓" : " ↑") : "")));
  return cell;
}

function sortBy(name) {
  if (asked.sort !== name) change({sort: name, down: false});
  else if (!asked.down) change({sort: name, down: true});
  else change({sort: "", down: false});
}

function drawRow(row, number) {
  const open = element("button", {type: "button", class: "open", "aria-label": `Look at row ${page.start + number + 1}`}, whole(page.start + number + 1));
  const line = element("tr", {"data-part": row.part, "data-row": row.row}, element("td", {class: "at"}, open),
    element("td", {class: "sentence"}, ...sentences(row)));
  for (const name of asked.shown) {
    const value = row.values[name], column = columns.get(name);
    line.append(element("td", {class: `${column.number ? "n" : ""}${value === null ? " none" : ""}${asked.sort === name ? " sorted" : ""}`, "data-label": name, title: typeof value === "string" ? value : null},
      element("span", {}, shown(name, value))));
  }
  line.addEventListener("click", (event) => {
    if (String(getSelection()) && event.target !== open) return;
    trail = [];
    show(row.part, row.row, {from: open});
  });
  return line;
}

function sentences(row) {
  const found = [element("p", {class: "text", dir: "auto", lang: language(row)}, ...pieces(row.text))];
  const same = row.decoded && JSON.stringify(row.decoded) === JSON.stringify(row.text);
  if (same) found.push(element("p", {class: "decoded"}, "the same"));
  else if (row.decoded) found.push(element("p", {class: "decoded", dir: "auto", lang: language(row)}, ...pieces(row.decoded)));
  return found;
}

function language(row) {  // what browsers choose fonts by
  const code = row.values.lang;
  const scripts = {Hans: "zh-Hans", Hant: "zh-Hant", Jpan: "ja", Hang: "ko"};
  return typeof code === "string" ? scripts[code.slice(-4)] || null : null;
}

function pieces(parts) {
  return parts.map(([sign, text]) => sign === "=" ? text : element(sign === "-" ? "del" : "ins", {}, text));
}

function mark() {
  for (const line of byId("body").children) {
    const here = opened && line.dataset.part === opened.part && Number(line.dataset.row) === opened.row;
    line.classList.toggle("current", Boolean(here));
    if (here) line.setAttribute("aria-current", "true"); else line.removeAttribute("aria-current");
  }
}

// One row: all its values, its document, its neighbours

async function show(part, row, {from = null, focus = true} = {}) {
  if (panelWaiting) panelWaiting.abort();
  const mine = panelWaiting = new AbortController();
  opened = {part, row, from: from || (opened && opened.from)};
  mark();
  const panel = byId("panel");
  try {
    const found = await ask("row", {part, row, opened: corpus.opened}, mine.signal);
    drawPanel(found);
  } catch (error) {
    if (error.name === "AbortError") return;
    panel.replaceChildren(panelTitle("Sentence"), element("pre", {class: "wrong", role: "alert"}, error.message));
  }
  panel.hidden = false;
  document.body.classList.add("looking");
  cover();
  panel.scrollTop = 0;
  if (focus) panel.focus({preventScroll: true});
}

const covering = matchMedia("(max-width: 74.99rem)");  // the panel covers the page: nothing behind it has the focus

function cover() {
  for (const behind of document.querySelectorAll("header, #bar, .status, .list")) behind.inert = covering.matches && !byId("panel").hidden;
}

function panelTitle(text) {
  const back = element("button", {type: "button", "aria-label": "Back to the row before", hidden: !trail.length, onclick: () => {
    const before = trail.pop();
    show(before.part, before.row);
  }}, "←");
  return element("div", {class: "title"}, back, element("h2", {id: "panel-title"}, text),
    element("button", {type: "button", "aria-label": "Close", onclick: close}, "✕"));
}

function go(part, row) {
  trail.push({part: opened.part, row: opened.row});
  show(part, row);
}

function close() {
  if (panelWaiting) panelWaiting.abort();
  const from = opened && opened.from;
  byId("panel").hidden = true;
  document.body.classList.remove("looking");
  cover();
  opened = null;
  trail = [];
  mark();
  if (from && from.isConnected) from.focus();
}

function drawPanel(found) {
  const values = element("dl", {class: "values"});
  for (const [name, value] of Object.entries(found.values)) {
    if (name === "part" || name === "row") continue;
    values.append(element("dt", {}, name), element("dd", {class: value === null ? "none" : ""},
      element("span", {dir: "auto"}, shown(name, value, true)), ...filters(name, value)));
  }
  const context = element("div");
  drawContext(context, found, found.document);
  byId("panel").replaceChildren(panelTitle("Sentence"),
    element("p", {class: "about"}, "part ", element("code", {}, found.part), `, row ${whole(found.row)}`),
    element("div", {class: "both"}, ...sentences(found)),
    element("section", {}, element("h3", {}, "Document"), context),
    element("section", {}, element("h3", {}, "Nearest sentences"), nearest(found)),
    element("section", {}, element("h3", {}, "Values"), values));
}

function filters(name, value) {
  const column = columns.get(name);
  if (!column || !column.ordered || name.includes("`")) return [];  // a condition cannot name such a column
  const signs = value === null ? [["is null", null]] : column.number && value === "NaN" ? [["=", "!="]] : column.number ? [["≤", "<="], ["≥", ">="], ["=", "=="]] : [["=", "=="], ["≠", "!="]];
  if (typeof value === "string" && (value.length > MOST_FILTER || /[\\…]/.test(value))) return [];
  return [element("span", {class: "signs"}, ...signs.map(([sign, written]) => element("button", {
    type: "button", title: `Filter: ${name} ${sign} this value`, "aria-label": `Filter by ${name} ${sign} this value`,
    onclick: () => addFilter(written === null ? `${named(name)} is null` : `${named(name)} ${written} ${column.number && value === "NaN" ? named(name) : constant(column, value)}`),  // only NaN is not itself
  }, sign)))];
}

function named(name) {
  return /^[\p{L}_][\p{L}\p{N}_]*$/u.test(name) && !KEYWORDS.has(name.toLowerCase()) ? name : `\`${name}\``;
}

function constant(column, value) {
  if (column.number && /inf$/.test(value)) return value.replace("inf", "1e999");
  return column.number || typeof value === "boolean" ? String(value) : `'${String(value).replace(/['\\]/g, "\\$&")}'`;
}

function addFilter(condition) {
  const before = asked.where.trim();
  const joined = /\bor\b/i.test(before) ? `(${before})` : before;
  change({where: joined ? `${joined} and ${condition}` : condition});
}

function drawContext(place, found, document_) {
  const list = element("ol", {class: "context"});
  let paragraph = null;
  for (const one of document_.rows) {
    const here = one.row === found.row, starts = paragraph !== null && one.values.paragraph !== paragraph;
    paragraph = one.values.paragraph;
    const score = one.values.autobleu;
    list.append(element("li", {class: `${here ? "here" : ""}${starts ? " starts" : ""}`, "aria-current": here ? "true" : null},
      element("button", {type: "button", disabled: here, title: here ? null : "Look at this sentence", onclick: () => go(one.part, one.row)},
        element("span", {dir: "auto", lang: language(one)}, one.text.map((piece) => piece[1]).join(""))),
      typeof score === "number" ? element("span", {class: "score", title: "AutoBLEU"}, shown("autobleu", score)) : null));
  }
  const more = (before, after) => async (event) => {
    event.target.disabled = true;
    try {
      drawContext(place, found, await ask("document", {part: found.part, row: found.row, opened: found.opened, before, after}));
    } catch (error) {
      place.append(element("pre", {class: "wrong", role: "alert"}, error.message));
    }
  };
  const before = found.row - document_.rows[0].row, after = document_.rows[document_.rows.length - 1].row - found.row;
  const piece = document_.piece ? `, piece ${whole(document_.piece + 1)}` : "";
  place.replaceChildren(
    element("p", {class: "about"}, element("bdi", {}, document_.id), `${piece}: sentences ${whole(document_.first)}–${whole(document_.last)} of ${whole(document_.sentences)}`),
    document_.first > 1 && before < 50 ? element("button", {type: "button", class: "more", onclick: more(50, after)}, "Earlier sentences") : "",
    list,
    document_.last < document_.sentences && after < 50 ? element("button", {type: "button", class: "more", onclick: more(before, 50)}, "Later sentences") : "");
}

function nearest(found) {
  if (!corpus.embeddings) return element("p", {class: "about"}, "The corpus has no embeddings.");
  const among = element("select", {"aria-label": "Among which sentences"}, element("option", {value: "all"}, "among all"));
  if (asked.where.trim()) among.append(element("option", {value: "filter"}, "among those of the filter"));
  among.append(element("option", {value: "lang"}, "in other languages"), element("option", {value: "same"}, "in the same language"));
  const out = element("div"), note = element("p", {class: "about", role: "status"});
  const button = element("button", {type: "button", onclick: async () => {
    const lang = `lang ${among.value === "lang" ? "!=" : "=="} ${constant({number: false}, found.values.lang)}`;
    const where = {all: "", filter: asked.where, lang, same: lang}[among.value];
    button.disabled = true;
    note.textContent = "Comparing embeddings …";
    try {
      const answer = await ask("nearest", {part: found.part, row: found.row, opened: found.opened, ...(where ? {where} : {})}, panelWaiting.signal,
        (said) => { note.textContent = said.read ? `Compared ${whole(said.read)} of ${counted(corpus.rows, "row")}` : "Comparing embeddings …"; });
      note.textContent = answer.rows.length ? "Cosine; the highest first." : "There is no other sentence.";
      out.replaceChildren(element("ol", {class: "context near"}, ...answer.rows.map((one) => element("li", {},
        element("button", {type: "button", title: "Look at this sentence", onclick: () => go(one.part, one.row)},
          element("span", {dir: "auto", lang: language(one)}, one.text.map((piece) => piece[1]).join("")), element("small", {}, one.values.lang)),
        element("span", {class: "score", title: "cosine"}, one.score.toFixed(3))))));
    } catch (error) {
      if (error.name !== "AbortError") note.textContent = error.message;
    }
    button.disabled = false;
  }}, "Find");
  return element("div", {}, element("div", {class: "find"}, button, among), note, out);
}

// What is done with the rows

async function use() {
  const parameters = asked.where.trim() ? {where: asked.where} : {};
  let found;
  try {
    found = await ask("use", parameters);
  } catch (error) {
    byId("wrong").textContent = error.message;
    byId("wrong").hidden = false;
    return;
  }
  const many = !asked.where.trim() ? `all ${counted(corpus.rows, "row")}` : page && page.whole ? counted(page.found, "row") : "all rows that satisfy the filter";
  byId("use-about").textContent = `${many[0].toUpperCase()}${many.slice(1)}, in the order of the corpus.`;
  byId("use-select").hidden = !found.select;
  byId("use-yaml").textContent = found.select;
  byId("use-remark").textContent = found.remark;
  byId("use-inspect").textContent = found.inspect;
  byId("use-python").textContent = found.python;
  links();
  for (const text of document.querySelectorAll("#use pre")) {
    text.parentElement.querySelectorAll(`[data-of="${text.id}"]`).forEach((one) => one.remove());
    text.after(element("button", {type: "button", class: "copy", "data-of": text.id, onclick: (event) => copy(event.target, text)}, "Copy"));
  }
  byId("use").showModal();
}

function links() {
  for (const kind of ["jsonl", "csv", "parquet"]) {
    const said = new URLSearchParams({format: kind});
    if (asked.where.trim()) said.set("where", asked.where);
    if (byId("which-shown").checked) said.set("columns", ["text", ...(corpus.decoded ? ["decoded"] : []), ...asked.shown, "part", "row"].filter((one, at, all) => all.indexOf(one) === at).join("\t"));
    byId(`as-${kind}`).href = `download?${said}`;
  }
}

async function copy(button, text) {
  try {
    await navigator.clipboard.writeText(text.textContent);
    button.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(text);
    button.textContent = "Selected: copy it with the keyboard";
  }
  setTimeout(() => { button.textContent = "Copy"; }, 2000);
}

// The controls

function grow() {
  const field = byId("where");
  field.style.height = "auto";
  field.style.height = `${Math.min(field.scrollHeight + 2, 200)}px`;
}

function step(by) {
  const lines = [...byId("body").children];
  if (!lines.length) return;
  const at = lines.findIndex((line) => line.contains(document.activeElement) || line.classList.contains("current"));
  const line = lines[Math.min(Math.max(at < 0 ? (by > 0 ? 0 : lines.length - 1) : at + by, 0), lines.length - 1)];
  const button = line.querySelector(".open");
  button.focus({preventScroll: true});
  line.scrollIntoView({block: "nearest"});
  if (opened) show(line.dataset.part, Number(line.dataset.row), {from: button, focus: false});
}

function turn(by) {
  if (page && !(by > 0 ? byId("next") : byId("previous")).disabled) change({start: Math.max(0, asked.start + by * asked.count)});
}

function keys(event) {
  if (event.key === "Escape") {
    const menu = document.querySelector("details.menu[open]");
    if (byId("use").open) return;
    if (menu) { menu.open = false; menu.querySelector("summary").focus(); } else if (opened) close();
    return;
  }
  if (event.ctrlKey || event.metaKey || event.altKey || byId("use").open || event.target.closest("input, textarea, select")) return;
  const does = {"/": () => byId("where").focus(), j: () => step(1), k: () => step(-1), n: () => turn(1), p: () => turn(-1)}[event.key];
  if (does) { event.preventDefault(); does(); }
}

function controls() {
  byId("bar").addEventListener("submit", (event) => { event.preventDefault(); change({where: byId("where").value.trim()}); });
  byId("where").addEventListener("input", grow);
  byId("where").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); byId("bar").requestSubmit(); }
  });
  byId("clear").addEventListener("click", () => { change({where: ""}); byId("where").focus(); });
  byId("sort").addEventListener("change", () => change({sort: byId("sort").value, down: false}));
  byId("down").addEventListener("click", () => change({down: !asked.down}));
  byId("count").addEventListener("change", () => change({count: Number(byId("count").value)}));
  byId("first").addEventListener("click", () => change({start: 0}));
  byId("previous").addEventListener("click", () => turn(-1));
  byId("next").addEventListener("click", () => turn(1));
  byId("goto").addEventListener("keydown", (event) => {
    const row = Number(event.target.value.replace(/\s/g, ""));
    if (event.key === "Enter" && Number.isInteger(row) && row > 0) { event.target.value = ""; change({start: row - 1}); }
  });
  byId("stop").addEventListener("click", () => waiting && waiting.abort());
  byId("all").addEventListener("click", () => look({all: true}));
  byId("take").addEventListener("click", use);
  byId("use-close").addEventListener("click", () => byId("use").close());
  byId("use").addEventListener("click", (event) => { if (event.target === byId("use")) byId("use").close(); });
  byId("which-all").addEventListener("change", links);
  byId("which-shown").addEventListener("change", links);
  document.addEventListener("keydown", keys);
  covering.addEventListener("change", cover);
  document.addEventListener("click", (event) => {
    for (const menu of document.querySelectorAll("details.menu[open]")) if (!menu.contains(event.target)) menu.open = false;
  });
  addEventListener("popstate", () => { asked = fromAddress(); look(); });
  for (const column of columns.values()) {
    if (column.ordered) byId("sort").append(element("option", {value: column.name}, column.name));
    byId("names").append(element("li", {}, element("button", {type: "button", title: `${column.type}, of ${column.of}`, onclick: () => {
      const field = byId("where");
      field.setRangeText(named(column.name), field.selectionStart, field.selectionEnd, "end");
      grow();
      field.focus();
    }}, column.name)));
    if (column.name === "text" || column.name === "decoded") continue;
    byId("choices").append(element("li", {}, element("label", {}, element("input", {type: "checkbox", value: column.name, onchange: (event) => {
      const others = asked.shown.filter((name) => name !== column.name);
      change({shown: event.target.checked ? [...others, column.name] : others, start: asked.start}, true);
    }}), ` ${column.name} `, element("small", {}, column.of === "documents" ? "of the document" : ""))));
  }
  for (const count of corpus.pages) byId("count").append(element("option", {value: count}, count));
}

function about(more = "") {
  columns = new Map(corpus.columns.map((one) => [one.name, one]));
  document.title = `${corpus.name} – pipeline browse`;
  byId("name").textContent = corpus.name;
  byId("about").replaceChildren(`${counted(corpus.rows, "sentence")} in ${counted(corpus.parts, "part")} · `, element("bdi", {}, corpus.url), more);
}

async function renew() {  // after a run or a purge
  corpus = await ask("corpus", {});
  about(" · changed since this page was loaded; reload it for new columns");
  asked.shown = asked.shown.filter((name) => columns.has(name));
}

async function start() {
  try {
    corpus = await ask("corpus", {});
  } catch (error) {
    byId("wrong").textContent = error.message;
    byId("wrong").hidden = false;
    return;
  }
  about();
  asked = fromAddress();
  controls();
  await look();
}

start();
