// Draws the interactive report from the JSON in #data. Everything that is shown is put into text nodes; nothing is evaluated.
"use strict";
(() => {
const data = JSON.parse(document.getElementById("data").textContent);
const n = data.text.length;
const BINS = 36, FEW = 5, PAGE = 25, EXAMPLES = 2, MOST_LANGS = 12, OTHERS = "#8a8f98";
const PALETTE = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#b8a800", "#7a5ec7", "#a0522d", "#3f7f7f"];
const RAMP = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [240, 220, 40]]; // viridis
const $ = id => document.getElementById(id);
const el = (tag, cls, text) => {
  const one = document.createElement(tag);
  if (cls) one.className = cls;
  if (text !== undefined && text !== null) one.textContent = text;
  return one;
};
const said = (tag, cls, text, marked = []) => { // text of a document: its direction stays inside
  const one = el(tag, cls), inner = el("bdi");
  inner.dir = "auto";
  highlight(inner, text, marked);
  one.append(inner);
  return one;
};
const spaced = value => String(Math.round(value)).replace(/\B(?=(\d{3})+$)/g, "\u202f");
const decimal = value => Math.abs(value) >= 1000 ? spaced(value) : String(+value.toPrecision(3)).replace("-", "−");
const counted = (number, noun) => `${spaced(number)} ${noun}${number === 1 ? "" : "s"}`;
const style = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const ramp = share => {
  const at = Math.max(0, Math.min(1, share)) * (RAMP.length - 1), low = Math.min(Math.floor(at), RAMP.length - 2);
  return RAMP[low].map((one, k) => Math.round(one + (RAMP[low + 1][k] - one) * (at - low)));
};
const css = colour => `rgb(${colour.join(",")})`;
const percent = share => `${(100 * share).toFixed(1)}\u202f%`;

// Filters: each knows which rows it keeps. `fails[row]`: how many filters reject a row; `last[row]`: one of those.
const filters = new Map();
const fails = new Uint8Array(n), last = new Array(n).fill(null);
let shown = [], words = [];
const passes = (row, but) => fails[row] === 0 || (fails[row] === 1 && last[row] === but);

function set(key, test, label, clear) {
  if (test) filters.set(key, {test, label, clear}); else filters.delete(key);
  update();
}

const score = data.numbers.find(one => one.name === "autobleu") || null;
const value = row => score ? score.values[row] : null;
const chars = data.numbers.find(one => one.name === "chars");
const bits = data.causes.bits, causes = data.causes.names;
const groups = [
  {key: "lang", title: "Language", names: data.lang.names, has: (row, k) => data.lang.codes[row] === k},
  {key: "source", title: "Source", names: data.source.names, has: (row, k) => data.source.codes[row] === k},
  {key: "cause", title: "Cause", names: [...causes, "none of these"],
    has: (row, k) => k === causes.length ? bits[row] === 0 : (bits[row] >> k & 1) === 1},
];

// Canvases
function fit(canvas) {
  const scale = window.devicePixelRatio || 1, box = canvas.getBoundingClientRect();
  const width = Math.max(1, Math.round(box.width)), height = Math.max(1, Math.round(box.height));
  if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
  }
  const pen = canvas.getContext("2d");
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  pen.clearRect(0, 0, width, height);
  return [pen, width, height];
}
function place(event, canvas) {
  const box = canvas.getBoundingClientRect();
  return [event.clientX - box.left, event.clientY - box.top];
}

// Histograms
const histograms = data.numbers.map(column => {
  const known = column.values.filter(one => one !== null);
  let low = known[0], high = known[0];
  for (const one of known) { if (one < low) low = one; if (one > high) high = one; }
  const to = column.log ? one => Math.log1p(one) : one => one, from = column.log ? Math.expm1 : one => one;
  const whole = known.every(Number.isInteger), steps = whole && !column.log && high - low < BINS ? high - low + 1 : BINS;
  const start = whole && steps < BINS ? low - 0.5 : to(low), end = whole && steps < BINS ? high + 0.5 : to(high);
  const bin = column.values.map(one => one === null ? -1 : Math.min(steps - 1, Math.floor((to(one) - start) / (end - start) * steps)));
  const box = el("div", "chart"), head = el("h3"), note = el("span");
  head.append(el("b", "", column.label));
  head.title = column.label;
  const canvas = el("canvas"), limits = el("div", "limits"), inputs = ["from", "to"].map(word => {
    const input = el("input");
    input.inputMode = "decimal";
    input.setAttribute("aria-label", `${column.label} ${word}`);
    input.addEventListener("change", typed);
    limits.append(input);
    return input;
  });
  const missing = n - known.length;
  note.textContent = [column.log ? "log" : "", missing ? `${spaced(missing)} without` : ""].filter(Boolean).join(" · ");
  head.append(note);
  canvas.setAttribute("role", "img");
  box.append(head, canvas, limits);
  $("numbers").append(box);
  let range = null, drag = null;
  const all = count(() => true);
  function count(keep) {
    const found = new Uint32Array(steps);
    for (let row = 0; row < n; row++) if (bin[row] >= 0 && keep(row)) found[bin[row]]++;
    return found;
  }
  const shownAs = one => decimal(whole ? Math.round(one) : one);
  function choose(next) {
    range = next && (next[0] > low || next[1] < high) ? next : null;
    const [a, b] = range || [low, high];
    set(column.name, range && (row => column.values[row] !== null && column.values[row] >= a && column.values[row] <= b),
      `${column.label}: ${shownAs(a)} – ${shownAs(b)}`, () => choose(null));
  }
  function typed() {
    const [a, b] = inputs.map((one, k) => {
      const number = parseFloat(one.value.replace("−", "-").replace(/[\s\u202f]/g, ""));
      return Number.isFinite(number) ? number : [low, high][k];
    });
    choose([Math.min(a, b), Math.max(a, b)]);
  }
  const at = x => start + Math.max(0, Math.min(1, x / canvas.clientWidth)) * (end - start);
  canvas.addEventListener("pointerdown", event => {
    canvas.setPointerCapture(event.pointerId);
    drag = place(event, canvas)[0];
  });
  canvas.addEventListener("pointermove", event => {
    if (drag === null) return;
    const x = place(event, canvas)[0];
    if (Math.abs(x - drag) < 3) return;
    const edges = [at(Math.min(drag, x)), at(Math.max(drag, x))];
    choose(whole ? [Math.ceil(from(edges[0]) - 1e-9), Math.floor(from(edges[1]) + 1e-9)] : edges.map(from));
  });
  const finish = event => {
    if (drag !== null && Math.abs(place(event, canvas)[0] - drag) < 3) choose(null);
    drag = null;
  };
  canvas.addEventListener("pointerup", finish);
  canvas.addEventListener("pointercancel", () => { drag = null; });
  function draw() {
    const [pen, width, height] = fit(canvas), now = count(row => passes(row, column.name));
    const most = Math.sqrt(Math.max(...all)), wide = width / steps;
    if (range) {
      const x = range.map(one => (to(one) - start) / (end - start) * width);
      pen.fillStyle = style("--wash");
      pen.fillRect(x[0], 0, Math.max(2, x[1] - x[0]), height);
    }
    for (const [counts, colour] of [[all, style("--all")], [now, style("--fill")]]) {
      pen.fillStyle = colour;
      counts.forEach((one, k) => {
        const tall = one ? Math.max(1.5, Math.sqrt(one) / most * (height - 4)) : 0;
        pen.fillRect(k * wide + .5, height - tall, Math.max(1, wide - 1), tall);
      });
    }
    canvas.setAttribute("aria-label", `${column.label} from ${shownAs(low)} to ${shownAs(high)}`);
    const ends = range || [low, high];
    inputs.forEach((one, k) => {
      if (document.activeElement !== one) one.value = shownAs(ends[k]);
      one.classList.toggle("set", Boolean(range));
    });
  }
  return {draw, choose, column};
});

// Groups
const lists = groups.filter(one => one.names.length > 1).map(group => {
  const chosen = new Set(), box = el("div"), list = el("div", "list");
  box.append(el("h3", "", group.title), list);
  $("groups").append(box);
  const totals = group.names.map((_, k) => { let sum = 0; for (let row = 0; row < n; row++) sum += group.has(row, k); return sum; });
  const most = Math.max(1, ...totals);
  const picks = group.names.map((name, k) => {
    const pick = el("button", "pick"), bar = el("i"), count = el("span", "n");
    pick.type = "button";
    pick.title = name;
    pick.append(bar, said("span", "", name), count);
    pick.addEventListener("click", () => toggle(k));
    if (totals[k]) list.append(pick);
    return {pick, bar, count};
  });
  function toggle(k) {
    if (chosen.has(k)) chosen.delete(k); else chosen.add(k);
    apply();
  }
  function only(k) { chosen.clear(); if (k !== null) chosen.add(k); apply(); }
  function apply() {
    const wanted = [...chosen];
    set(group.key, wanted.length ? row => wanted.some(k => group.has(row, k)) : null,
      `${group.title}: ${wanted.map(k => group.names[k]).join(", ")}`, () => only(null));
  }
  function draw() {
    picks.forEach((one, k) => {
      let sum = 0;
      for (let row = 0; row < n; row++) if (passes(row, group.key) && group.has(row, k)) sum++;
      one.bar.style.width = `${100 * sum / most}%`;
      one.count.textContent = spaced(sum);
      one.pick.classList.toggle("none", sum === 0);
      one.pick.setAttribute("aria-pressed", String(chosen.has(k)));
    });
  }
  return {draw, only, key: group.key};
});

// Map
const map = $("map"), tip = $("tip"), mapped = data.map.rows > 0;
const colourings = [
  ...(score ? [{title: "AutoBLEU", ramp: true, low: 0, high: 100, of: row => value(row) === null ? null : value(row) / 100}] : []),
  ...groups.slice(0, 2).filter(one => one.names.length > 1).map(group => {
    const codes = data[group.key].codes;
    return {title: group.title, names: group.names, of: row => codes[row]};
  }),
  ...(data.cluster && data.cluster.names.length > 1
    ? [{title: "Cluster (first code)", names: data.cluster.names, of: row => data.cluster.codes[row]}] : []),
  ...data.numbers.filter(one => one !== score).map(column => {
    const {low, high} = extent(column.values), to = column.log ? Math.log1p : one => one;
    return {title: column.label, ramp: true, low, high,
      of: row => column.values[row] === null ? null : (to(column.values[row]) - to(low)) / (to(high) - to(low))};
  }),
];
let colouring = colourings.find(one => one.names) || colourings[0], mapDrag = null, mapRange = null;
function extent(values) {
  let low = Infinity, high = -Infinity;
  for (const one of values) if (one !== null) { low = Math.min(low, one); high = Math.max(high, one); }
  return {low, high};
}
function colourOf(row) {
  if (!colouring) return style("--fill");
  const one = colouring.of(row);
  if (one === null) return OTHERS;
  return colouring.names ? PALETTE[one] || OTHERS : css(ramp(one));
}
function onMap(width, height) { // equal scales on both axes
  const pad = 14, xs = data.map.x.filter(one => one >= 0), ys = data.map.y.filter(one => one >= 0);
  const [x, y] = [extent(xs), extent(ys)], spans = [Math.max(1, x.high - x.low), Math.max(1, y.high - y.low)];
  const unit = Math.min((width - 2 * pad) / spans[0], (height - 2 * pad) / spans[1]);
  const left = (width - spans[0] * unit) / 2 - x.low * unit, top = (height - spans[1] * unit) / 2 - y.low * unit;
  return row => [left + data.map.x[row] * unit, height - top - data.map.y[row] * unit];
}
function drawMap() {
  if (!mapped) return;
  const [pen, width, height] = fit(map), where = onMap(width, height);
  const size = data.map.rows > 4000 ? 1.6 : 2.3;
  pen.fillStyle = style("--all");
  for (let row = 0; row < n; row++) if (data.map.x[row] >= 0 && !passes(row, "map")) dot(row, size * .8);
  pen.globalAlpha = .75;
  for (let row = n - 1; row >= 0; row--) if (data.map.x[row] >= 0 && passes(row, "map")) { pen.fillStyle = colourOf(row); dot(row, size); }
  pen.globalAlpha = 1;
  function dot(row, r) { const [x, y] = where(row); pen.beginPath(); pen.arc(x, y, r, 0, 7); pen.fill(); }
  if (mapRange) {
    pen.strokeStyle = style("--ink");
    pen.setLineDash([4, 3]);
    pen.strokeRect(mapRange[0], mapRange[1], mapRange[2] - mapRange[0], mapRange[3] - mapRange[1]);
    pen.setLineDash([]);
  }
}
function chooseOnMap(box) {
  mapRange = box;
  const where = mapped && onMap(map.clientWidth, map.clientHeight);
  const inside = box && new Set();
  if (box) for (let row = 0; row < n; row++) {
    const [x, y] = where(row);
    if (data.map.x[row] >= 0 && x >= box[0] && x <= box[2] && y >= box[1] && y <= box[3]) inside.add(row);
  }
  set("map", box && (row => inside.has(row)), "part of the map", () => chooseOnMap(null));
}
function hover(event) {
  const [x, y] = place(event, map);
  if (mapDrag && Math.hypot(x - mapDrag[0], y - mapDrag[1]) > 4) {
    tip.hidden = true;
    chooseOnMap([Math.min(x, mapDrag[0]), Math.min(y, mapDrag[1]), Math.max(x, mapDrag[0]), Math.max(y, mapDrag[1])]);
    return;
  }
  const where = onMap(map.clientWidth, map.clientHeight);
  let best = null, near = 14;
  for (let row = 0; row < n; row++) if (data.map.x[row] >= 0 && fails[row] === 0) {
    const [a, b] = where(row), far = Math.hypot(a - x, b - y);
    if (far < near) { near = far; best = row; }
  }
  tip.hidden = best === null;
  if (best === null) return;
  tip.replaceChildren(...describe(best));
  const [a, b] = where(best);
  tip.style.left = `${Math.max(0, Math.min(a + 12, map.clientWidth - tip.offsetWidth))}px`;
  tip.style.top = `${b + 14 + tip.offsetHeight > map.clientHeight ? Math.max(0, b - 14 - tip.offsetHeight) : b + 14}px`;
}
function legend() {
  const list = $("legend");
  list.replaceChildren();
  if (!mapped || !colouring) return;
  list.classList.toggle("whole", Boolean(colouring.ramp));
  if (colouring.ramp) {
    const canvas = el("canvas", "ramp"), line = el("li"), ends = el("li", "ends");
    line.append(canvas);
    ends.append(el("span", "", decimal(colouring.low)), el("span", "", decimal(colouring.high)));
    list.append(line, ends);
    const [pen, width, height] = fit(canvas);
    for (let x = 0; x < width; x++) { pen.fillStyle = css(ramp(x / width)); pen.fillRect(x, 0, 1, height); }
    return;
  }
  colouring.names.slice(0, PALETTE.length).forEach((name, k) => list.append(key(PALETTE[k], said("span", "", name))));
  if (colouring.names.length > PALETTE.length) list.append(key(OTHERS, el("span", "", `${colouring.names.length - PALETTE.length} others`)));
  function key(colour, label) {
    const line = el("li"), canvas = el("canvas");
    line.append(canvas, label);
    canvas.style.background = colour;
    return line;
  }
}

// Sentences
function highlight(box, text, marked) {
  if (!marked.length || text === null) { box.append(text === null ? "–" : text); return; }
  const lower = text.toLowerCase();
  if (lower.length !== text.length) { box.append(text); return; } // places would not agree
  let from = 0;
  while (from < text.length) {
    let at = -1, length = 0;
    for (const word of marked) {
      const found = lower.indexOf(word, from);
      if (found >= 0 && (at < 0 || found < at)) { at = found; length = word.length; }
    }
    if (at < 0) break;
    box.append(text.slice(from, at), el("mark", "", text.slice(at, at + length)));
    from = at + length;
  }
  box.append(text.slice(from));
}
function describe(row) {
  const kinds = causes.filter((_, k) => bits[row] >> k & 1);
  const facts = [data.lang.names[data.lang.codes[row]], data.document[row], data.source.names[data.source.codes[row]], ...kinds];
  const found = [said("p", "", data.text[row], words)];
  if (data.decoded[row] !== null) found.push(said("p", "decoded", data.decoded[row], words));
  const place = said("p", "place", [...new Set(facts.filter(Boolean))].join(" · "));
  if (value(row) !== null) place.prepend(`AutoBLEU ${decimal(value(row))} · `);
  return [...found, place];
}
function item(row) {
  const line = el("li"), body = el("div");
  body.append(...describe(row));
  line.append(el("span", "score", value(row) === null ? "" : value(row).toFixed(1)), body);
  return line;
}
const orders = [
  ...(score ? [["lowest AutoBLEU", ascending(score)], ["highest AutoBLEU", descending(score)]] : []),
  ["random", (a, b) => a - b],
  ...(chars ? [["longest", descending(chars)], ["shortest", ascending(chars)]] : []),
  ...data.numbers.filter(one => one !== score && one !== chars).map(one => [`highest ${one.label}`, descending(one)]),
];
function ascending(column) { return (a, b) => (column.values[a] ?? Infinity) - (column.values[b] ?? Infinity) || a - b; }
function descending(column) { return (a, b) => (column.values[b] ?? -Infinity) - (column.values[a] ?? -Infinity) || a - b; }
let order = 0, most = PAGE;
function drawRows() {
  const sorted = [...shown].sort(orders[order][1]);
  $("rows").replaceChildren(...sorted.slice(0, most).map(item));
  if (!sorted.length) $("rows").append(el("li", "empty", "No sentence of the sample is like that."));
  $("more").hidden = sorted.length <= most;
}

// AutoBLEU by language and length
function drawHeat() {
  const table = $("heat"), lengths = data.lengths.map(([low, high]) => high ? `${low}–${high}` : `${low}+`);
  const sums = new Map();
  for (const row of shown) if (value(row) !== null && chars) {
    const lang = data.lang.codes[row], long = chars.values[row];
    const bin = data.lengths.findIndex(([low, high]) => long >= low && (high === null || long <= high));
    const cell = sums.get(`${lang} ${bin}`) || [0, 0];
    cell[0] += value(row);
    cell[1]++;
    sums.set(`${lang} ${bin}`, cell);
  }
  const used = lengths.map((_, bin) => [...sums.keys()].some(key => key.endsWith(` ${bin}`)));
  const head = el("tr");
  head.append(el("th"), ...lengths.filter((_, bin) => used[bin]).map(one => el("th", "n", one)));
  const lines = data.lang.names.slice(0, 40).map((name, lang) => {
    const line = el("tr"), title = said("th", "", name);
    title.scope = "row";
    line.append(title);
    data.lengths.forEach(([low, high], bin) => {
      if (!used[bin]) return;
      const cell = el("td"), found = sums.get(`${lang} ${bin}`);
      if (found) {
        const mean = found[0] / found[1], colour = ramp(mean / 100), button = el("button", found[1] < FEW ? "few" : "", mean.toFixed(0));
        button.type = "button";
        button.title = `${name}, ${lengths[bin]} characters: ${mean.toFixed(1)} over ${counted(found[1], "sentence")}`;
        button.style.background = css(colour);
        button.style.color = colour[0] * .3 + colour[1] * .59 + colour[2] * .11 > 125 ? "#111" : "#fff";
        button.addEventListener("click", () => {
          const list = lists.find(one => one.key === "lang"), histogram = histograms.find(one => one.column === chars);
          if (list) list.only(lang);
          histogram.choose([low, high ?? extent(chars.values).high]);
        });
        cell.append(button);
      }
      line.append(cell);
    });
    return sums.size && [...sums.keys()].some(key => key.startsWith(`${lang} `)) ? line : null;
  });
  table.replaceChildren(head, ...lines.filter(Boolean));
}

// Examples: of every cause and language, those with the lowest AutoBLEU
function drawExamples() {
  const box = $("examples"), open = new Set([...box.querySelectorAll("details[open]")].map(one => one.dataset.cause));
  const first = !box.children.length, found = [];
  groups[2].names.forEach((name, k) => {
    const rows = shown.filter(row => groups[2].has(row, k));
    if (!rows.length) return;
    if (score) rows.sort(ascending(score));
    const scored = rows.filter(row => value(row) !== null);
    const mean = scored.length ? scored.reduce((sum, row) => sum + value(row), 0) / scored.length : null;
    const taken = new Map();
    const picked = rows.filter(row => {
      const lang = data.lang.codes[row], already = taken.get(lang) || 0;
      taken.set(lang, already + 1);
      return lang < MOST_LANGS && already < EXAMPLES;
    });
    const details = el("details"), summary = el("summary", "", name), list = el("ol", "rows");
    summary.append(el("span", "", `  ${counted(rows.length, "sentence")}${mean === null ? "" : `, mean AutoBLEU ${mean.toFixed(1)}`}`));
    details.dataset.cause = name;
    details.append(summary, list);
    details.addEventListener("toggle", () => { if (details.open && !list.children.length) list.append(...picked.map(item)); });
    found.push({details, mean});
    details.open = !first && open.has(name);
  });
  found.sort((a, b) => (a.mean ?? 1000) - (b.mean ?? 1000));
  if (first && found.length) found[0].details.open = true;
  box.replaceChildren(...found.map(one => one.details));
}

function drawSources() {
  const {head, rows, more} = data.sources, table = $("sources"), line = el("tr");
  $("sources-lead").textContent = `Of all ${spaced(data.read)} sentences that were read, not of the sample.` +
    (more ? ` ${spaced(more)} smaller sources are left out.` : "");
  line.append(el("th", "", "source"), el("th", "n", "sentences"), ...head.map(one => el("th", "n", one)));
  table.append(line, ...rows.map(([name, count, ...values]) => {
    const row = el("tr");
    row.append(said("td", "", name), el("td", "n", spaced(count)), ...values.map(one => el("td", "n", one)));
    return row;
  }));
}

// Sections of the static report
const MARKS = {good: "✓", look: "!", bad: "✗", plain: "–"};
function coded(tag, cls, text) { // what is between backticks is code
  const one = el(tag, cls);
  text.split("`").forEach((part, k) => one.append(k % 2 ? el("code", "", part) : part));
  return one;
}
function tableOf({head, rows, text}) {
  const box = el("div", "scroll"), table = el("table"), line = el("tr");
  line.append(...head.map((name, k) => el("th", k < text ? "" : "n", name)));
  table.append(line, ...rows.map(cells => {
    const row = el("tr");
    row.append(...cells.map((cell, k) => k < text ? said("td", "t", cell) : el("td", "n", cell)));
    return row;
  }));
  box.append(table);
  return box;
}
function drawSection(box, section, extra) {
  box.hidden = !section;
  if (!section) return;
  box.append(el("h2", "", section.title), coded("p", "lead", section.lead));
  let waits = extra;
  for (const block of section.blocks) {
    if (block.kind === "note") {
      const note = el("p", `note ${block.level}`);
      note.append(el("b", "", MARKS[block.level]), coded("span", "", block.text));
      box.append(note);
      continue;
    }
    if (block.title) box.append(el("h3", "", block.title));
    box.append(tableOf(block));
    if (waits) { box.append(waits); waits = null; } // below the first table
  }
}

// Losses of the models by step; logarithmic if they differ by more than a factor of 30
function curvesOf({name, series}) {
  const box = el("figure"), canvas = el("canvas"), note = el("figcaption"), pad = {left: 44, right: 8, top: 8, bottom: 20};
  const steps = extent(series.flatMap(one => one.steps)), losses = extent(series.flatMap(one => one.losses));
  const log = losses.low > 0 && losses.high > 30 * losses.low, to = log ? Math.log : one => one;
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `loss by step: ${series.map(one => one.name).join(" and ")}`);
  box.append(said("h3", "", name), canvas, note);
  const share = (value, {low, high}, by) => high > low ? (by(value) - by(low)) / (by(high) - by(low)) : .5;
  function say(of) {
    note.replaceChildren(...series.map((one, k) => {
      const at = of === null ? one.steps.length - 1 : nearest(one.steps, of);
      return el("span", one.name, `${one.name} ${decimal(one.losses[at])} at step ${spaced(one.steps[at])}`);
    }), ...(log ? [el("span", "", "logarithmic")] : []));
  }
  function nearest(values, wanted) {
    let best = 0;
    values.forEach((one, k) => { if (Math.abs(one - wanted) < Math.abs(values[best] - wanted)) best = k; });
    return best;
  }
  canvas.addEventListener("pointermove", event => {
    const part = (place(event, canvas)[0] - pad.left) / Math.max(1, canvas.clientWidth - pad.left - pad.right);
    say(steps.low + Math.max(0, Math.min(1, part)) * (steps.high - steps.low));
  });
  canvas.addEventListener("pointerleave", () => say(null));
  function draw() {
    const [pen, width, height] = fit(canvas), wide = width - pad.left - pad.right, high = height - pad.top - pad.bottom;
    const x = one => pad.left + share(one, steps, value => value) * wide, y = one => pad.top + (1 - share(one, losses, to)) * high;
    pen.font = `11px ${style("--sans")}`;
    pen.fillStyle = style("--muted");
    pen.strokeStyle = style("--rule");
    pen.textAlign = "right";
    for (let k = 0; k <= 4; k++) {
      const level = to(losses.low) + (to(losses.high) - to(losses.low)) * k / 4, value = log ? Math.exp(level) : level;
      pen.beginPath(); pen.moveTo(pad.left, y(value)); pen.lineTo(width - pad.right, y(value)); pen.stroke();
      pen.fillText(decimal(value), pad.left - 6, y(value) + 4);
      if (losses.high === losses.low) break;
    }
    pen.textAlign = "left";
    pen.fillText(spaced(steps.low), pad.left, height - 5);
    pen.textAlign = "right";
    pen.fillText(`step ${spaced(steps.high)}`, width - pad.right, height - 5);
    for (const one of series) {
      pen.strokeStyle = pen.fillStyle = style(one.name === "training" ? "--blue" : "--orange");
      pen.lineWidth = 1.6;
      pen.beginPath();
      one.steps.forEach((step, k) => pen.lineTo(x(step), y(one.losses[k])));
      pen.stroke();
      if (one.steps.length <= 30) one.steps.forEach((step, k) => { pen.beginPath(); pen.arc(x(step), y(one.losses[k]), 2.6, 0, 7); pen.fill(); });
    }
  }
  say(null);
  return {box, draw};
}
const curves = data.models ? data.models.curves.map(curvesOf) : [];
const drawCurves = () => curves.forEach(one => one.draw());

function drawDocuments() {
  const {count, whole, quartiles, most, bins} = data.documents, tallest = Math.max(1, ...bins.map(one => one[2]));
  $("documents-section").hidden = !count;
  if (!count) return;
  const [low, middle, high] = quartiles.map(decimal);
  $("documents-lead").textContent = (whole ? `Of ${count === 1 ? "the one document" : `all ${counted(count, "document")}`}`
    : `Of the ${counted(count, "document")} of the ${spaced(data.read)} sentences that were read`) +
    `, not of the sample. Quartiles: ${low}, ${middle} and ${high} sentences; at most ${spaced(most)}.`;
  $("documents").append(...bins.map(([first, last, found]) => {
    const line = el("div", "pick"), bar = el("i");
    bar.style.width = `${100 * found / tallest}%`;
    line.append(bar, el("span", "", first === last ? spaced(first) : `${spaced(first)} – ${spaced(last)}`), el("span", "n", spaced(found)));
    return line;
  }));
}

// All charts after a change
let waiting = false;
function update() {
  fails.fill(0);
  for (const [key, {test}] of filters) for (let row = 0; row < n; row++) if (!test(row)) { fails[row]++; last[row] = key; }
  shown = [];
  for (let row = 0; row < n; row++) if (fails[row] === 0) shown.push(row);
  most = PAGE;
  if (!waiting) { waiting = true; requestAnimationFrame(() => { waiting = false; draw(); }); }
}
function draw() {
  $("shown").textContent = spaced(shown.length);
  $("of").textContent = `of ${counted(n, "sentence")}`;
  $("clear").hidden = filters.size === 0;
  $("chips").replaceChildren(...[...filters.values()].map(one => {
    const chip = el("button", "chip");
    chip.type = "button";
    chip.title = "remove this filter";
    chip.append(said("span", "", one.label), " ×");
    chip.addEventListener("click", one.clear);
    return chip;
  }));
  histograms.forEach(one => one.draw());
  lists.forEach(one => one.draw());
  drawMap();
  if (score) drawHeat();
  drawExamples();
  drawRows();
}

function begin() {
  $("name").textContent = data.name;
  $("about").textContent = `${spaced(n)} of ${counted(data.total, "sentence")}` +
    (n < data.total ? ": those with the smallest u, which is random" : "") +
    (data.read < data.total ? `, among the first ${spaced(data.read)}, in the random order of the parts` : "") + ".";
  for (const one of data.expected) {
    const line = el("li", one.holds ? "good" : "bad");
    line.append(el("b", "", one.holds ? "✓" : "✗"), said("span", "", one.said));
    $("expected").append(line);
  }
  $("map-section").hidden = !mapped;
  $("columns-section").hidden = !histograms.length;
  $("constants").hidden = !data.constants.length;
  $("constants").textContent = `The same in every sentence: ${data.constants.join(", ")}.`;
  $("heat-section").hidden = !score || !chars;
  const [first, second] = data.map.explained;
  $("map-lead").textContent = (data.map.pacmap
    ? `${spaced(data.map.rows)} embeddings, placed by PaCMAP: what is near on the map is alike; distances far apart and axes say little. `
    : `The first two principal components of ${spaced(data.map.rows)} embeddings (${percent(first)} and ${percent(second)} of their variance). ` +
      (data.map.instead && `${data.map.instead} `)) + "Point at one to read it; drag to keep a part.";
  $("examples-lead").textContent = score
    ? `Up to ${EXAMPLES} of each cause and language, those with the lowest AutoBLEU; the worst causes first.`
    : `Up to ${EXAMPLES} of each cause and language.`;
  colourings.forEach((one, k) => { const option = el("option", "", one.title); option.value = k; option.selected = one === colouring; $("colour").append(option); });
  orders.forEach(([name], k) => { const option = el("option", "", name); option.value = k; $("order").append(option); });
  $("colour").addEventListener("change", () => { colouring = colourings[$("colour").value]; legend(); drawMap(); });
  $("order").addEventListener("change", () => { order = Number($("order").value); drawRows(); });
  $("more").addEventListener("click", () => { most += PAGE; drawRows(); });
  $("clear").addEventListener("click", () => { for (const one of [...filters.values()]) one.clear(); });
  $("search").addEventListener("input", search);
  map.addEventListener("pointermove", hover);
  map.addEventListener("pointerdown", event => { map.setPointerCapture(event.pointerId); mapDrag = place(event, map); });
  map.addEventListener("pointerup", event => {
    const [x, y] = place(event, map);
    if (mapDrag && Math.hypot(x - mapDrag[0], y - mapDrag[1]) <= 4) { chooseOnMap(null); hover(event); }
    mapDrag = null;
  });
  map.addEventListener("pointercancel", () => { mapDrag = null; });
  map.addEventListener("pointerleave", () => { tip.hidden = true; });
  addEventListener("resize", () => { if (mapRange) chooseOnMap(null); legend(); draw(); drawCurves(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { legend(); draw(); drawCurves(); });
  $("foot").textContent = "This file needs nothing but itself. It quotes sentences of the corpus.";
  drawSources();
  drawDocuments();
  drawSection($("compared-section"), data.compared);
  const plots = el("div", "plots");
  plots.append(...curves.map(one => one.box));
  drawSection($("models-section"), data.models, curves.length ? plots : null);
  drawCurves();
  $("colour").parentElement.hidden = !colouring;
  legend();
  update();
}
const texts = data.text.map((text, row) => `${text}\n${data.decoded[row] ?? ""}\n${data.document[row] ?? ""}`.toLowerCase());
function search() {
  words = $("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  set("search", words.length ? row => words.every(word => texts[row].includes(word)) : null,
    `“${words.join(" ")}”`, () => { $("search").value = ""; search(); });
}
begin();
})();
