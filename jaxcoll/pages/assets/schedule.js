const hops = data.hops, ways = data.chunks, total = data.seconds * 1e6;
const state = { at: 0, chunk: -1, link: -1, timer: null };
const stepNow = () => hops.shown[state.at] ?? 0;

// Messages by step and by link, so that nothing below searches.
const ofStep = new Map(), ofLink = data.links.map(() => []);
hops.step.forEach((step, i) => {
  if (!ofStep.has(step)) ofStep.set(step, []);
  ofStep.get(step).push(i);
  ofLink[hops.link[i]].push(i);
});
const loadsOf = (step) => {
  const loads = new Map();
  for (const i of ofStep.get(step) || []) loads.set(hops.link[i], (loads.get(hops.link[i]) || 0) + hops.bytes[i] / data.links[hops.link[i]][2]);
  return loads;
};
let most = 0;
for (const step of ofStep.keys()) for (const x of loadsOf(step).values()) most = Math.max(most, x);

// ------------------------------------------------------------------ the network

const lines = [], discs = [];
function drawNetwork() {
  const net = data.network;
  if (!net) return;
  const xs = net.curve.flatMap((c) => [c[0], c[4]]).concat(net.place.map((p, v) => p[0] - net.width[v] / 2), net.place.map((p, v) => p[0] + net.width[v] / 2), net.frames.flatMap((f) => [f[0], f[2]]));
  const ys = net.curve.flatMap((c) => [c[1], (c[1] + 2 * c[3] + c[5]) / 4, c[5]]).concat(net.place.map((p) => p[1]), net.frames.flatMap((f) => [f[1], f[3]]));
  const side = net.curve.map((c) => (c[0] + 2 * c[2] + c[4]) / 4);
  const spread = (values) => values.reduce(([low, high], x) => [Math.min(low, x), Math.max(high, x)], [Infinity, -Infinity]);
  const [x0, x1] = spread(xs.concat(side)), [y0, y1] = spread(ys), pad = 0.35;
  const svg = element("svg", { viewBox: `${x0 - pad} ${y0 - pad} ${x1 - x0 + 2 * pad} ${y1 - y0 + 2 * pad}`, role: "img", "aria-label": "The network" });
  byId("picture").appendChild(svg);
  const tip = element("marker", { id: "tip", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 4.2, markerHeight: 4.2, orient: "auto" }, element("defs", {}, svg));
  element("path", { d: "M0 0L8 4L0 8z", fill: "context-stroke" }, tip);
  for (const [a, b, c, d, name] of net.frames) {
    const shape = { x: a, y: b, width: c - a, height: d - b, rx: net.round[0] ? (c - a) / 2 : 0.15, fill: "var(--paper)", stroke: "var(--line)", "stroke-width": 0.015 };
    element("rect", shape, svg);
    const above = b < (y0 + y1) / 2;
    element("text", { x: net.round[0] ? (a + c) / 2 : a + 0.2, y: net.round[0] ? (b + d) / 2 : above ? b + 0.2 : d - 0.2, "font-size": 0.2, style: `fill: var(--soft); text-anchor: ${net.round[0] ? "middle" : "start"}` }, svg, name);
  }
  net.curve.forEach((c, i) => {
    // Shortened at both ends, so that the tip stands before the vertex.
    const cut = (x, y, vertex) => {
      const dx = c[2] - x, dy = c[3] - y, long = Math.hypot(dx, dy) || 1, gap = net.width[vertex] ? 0.14 / Math.max(Math.abs(dy) / long, 0.3) : 0.19;
      return [x + dx / long * gap, y + dy / long * gap];
    };
    const [ax, ay] = cut(c[0], c[1], net.src[i]), [bx, by] = cut(c[4], c[5], net.dst[i]);
    const path = `M${ax} ${ay}Q${c[2]} ${c[3]} ${bx} ${by}`;
    lines.push(element("path", { d: path, fill: "none", "marker-end": "url(#tip)", "data-link": i }, svg));
    const wide = element("path", { d: path, fill: "none", stroke: "transparent", "stroke-width": 0.14 }, svg);
    wide.addEventListener("pointerenter", () => { byId("hovered").dataset.over = i; sayLink(i); });
    wide.addEventListener("pointerleave", () => sayLink(state.link));
    wide.addEventListener("click", () => { byId("link").value = i; state.link = i; show(); });
  });
  net.place.forEach(([x, y], v) => {
    const rank = v < net.ranks[0], width = Math.max(net.width[v], 0.26), style = { stroke: "var(--ink)", "stroke-width": 0.018 };
    discs.push(rank ? element("circle", { cx: x, cy: y, r: 0.17, ...style }, svg)
      : element("rect", { x: x - width / 2, y: y - 0.13, width, height: 0.26, rx: 0.04, ...style }, svg));
    element("text", { x, y, "font-size": net.name[v].length > 3 && !net.width[v] ? 0.1 : 0.15 }, svg, net.name[v]);
  });
}

function holders() {
  const held = new Set([data.owner[state.chunk]]), net = data.network, arrived = new Map();
  for (let i = ways.ptr[state.chunk]; i < ways.ptr[state.chunk + 1]; i++) {
    const link = ways.link[i], step = ways.step[i];
    if (step > stepNow()) continue;
    arrived.set(link, { step, reduce: ways.reduce[i] });
    if (net) held.add(net.dst[link]);
  }
  return [held, arrived];
}

function paint() {
  const loads = loadsOf(stepNow()), following = state.chunk >= 0;
  const [held, arrived] = following ? holders() : [new Set(), new Map()];
  lines.forEach((line, i) => {
    const part = loads.get(i) / most, way = arrived.get(i);
    const busy = following ? way !== undefined : part > 0;
    line.style.stroke = !busy ? "var(--line)" : following ? (way.step === stepNow() ? "var(--mark)" : "var(--accent)") : load(part);
    line.style.strokeWidth = (busy ? 0.036 : 0.014) + (i === state.link ? 0.03 : 0);
    line.style.strokeDasharray = following && way && way.reduce ? "0.09 0.05" : "";
  });
  discs.forEach((disc, v) => { disc.style.fill = held.has(v) ? "color-mix(in srgb, var(--accent) 45%, var(--bg))" : v < data.network.ranks[0] ? "var(--bg)" : "var(--paper)"; });
  byId("ramp").style.background = following ? "var(--accent)" : `linear-gradient(90deg, ${[0, .25, .5, .75, 1].map(load).join(",")})`;
  byId("rampsaid").textContent = following ? "the chunk's way so far, orange in this step, dashed where the receiver adds. Filled: reached so far, and the rank it belongs to." : "a link's load in this step, from none to the most of any link in any step.";
}

// ------------------------------------------------------------------ words

function sayStep() {
  const step = stepNow(), found = ofStep.get(step) || [];
  const moved = found.reduce((sum, i) => sum + hops.bytes[i], 0), links = new Set(found.map((i) => hops.link[i])).size;
  const from = found.reduce((low, i) => Math.min(low, hops.start[i]), Infinity), to = found.reduce((high, i) => Math.max(high, hops.start[i] + hops.busy[i]), 0);
  const lines = [`Step ${step}`, `${found.length} messages on ${links} links, ${bytes(moved)}`, found.length ? `links busy from ${micros(from)} to ${micros(to)}` : ""];
  if (state.chunk >= 0) {
    const here = [];
    for (let i = ways.ptr[state.chunk]; i < ways.ptr[state.chunk + 1]; i++) if (ways.step[i] === step) here.push(data.links[ways.link[i]][0] + (ways.reduce[i] ? " (adds)" : ""));
    lines.push(`Chunk ${state.chunk} of rank ${data.owner[state.chunk]}: ${here.length ? here.slice(0, 24).join(", ") : "rests in this step"}`);
  }
  paragraphs(byId("said"), lines);
  byId("where").textContent = `step ${step} / ${Math.max(data.steps - 1, 0)}`;
}

function sayLink(i) {
  if (i < 0) return paragraphs(byId("hovered"), ["Links", "Point at a link, or choose one above, to read what it carries."]);
  const [name, alpha, bandwidth, moved, busy] = data.links[i];
  const here = (ofStep.get(stepNow()) || []).filter((m) => hops.link[m] === i);
  paragraphs(byId("hovered"), [
    `Link ${name}`, `${digits(bandwidth / 1e9)} GB/s, ${digits(alpha * 1e6)} µs`,
    `carries ${bytes(moved)} in all; busy ${micros(busy * total)}, ${Math.round(100 * busy)} % of the time`,
    here.length ? `in this step ${bytes(here.reduce((s, m) => s + hops.bytes[m], 0))} from ${micros(hops.start[here[0]])}` : "idle in this step",
  ]);
}

// ------------------------------------------------------------------ links over time

const LEFT = Math.max(...data.rows.map((i) => Math.min(data.links[i][0].length, 40)), 4) * 6 + 14, rowHeight = Math.max(4, Math.min(15, 720 / Math.max(data.rows.length, 1)));
// Of a schedule that is shown in part, how busy each link is over all of its messages, a pixel each.
function densityImage() {
  const { rows } = data.density, made = document.createElement("canvas");
  made.width = rows[0].length; made.height = rows.length;
  const pen = made.getContext("2d"), image = pen.createImageData(made.width, made.height);
  const channels = (name) => { pen.fillStyle = colour(name); pen.fillRect(0, 0, 1, 1); return pen.getImageData(0, 0, 1, 1).data.slice(0, 3); };
  const idle = channels("--paper"), busy = channels("--soft");
  rows.forEach((row, y) => {
    for (let x = 0; x < row.length; x++) {
      const part = parseInt(row[x], 36) / 35, at = 4 * (y * made.width + x);
      for (let c = 0; c < 3; c++) image.data[at + c] = idle[c] + part * (busy[c] - idle[c]);
      image.data[at + 3] = 255;
    }
  });
  pen.putImageData(image, 0, 0);
  return made;
}
const scale = (width) => (width - LEFT - 8) / (total || 1);
const drawTimeline = canvas(byId("timeline"), data.rows.length * rowHeight + 24, (pen, width) => {
  const marked = new Set();
  if (state.chunk >= 0) for (let i = ways.ptr[state.chunk]; i < ways.ptr[state.chunk + 1]; i++) marked.add(`${ways.step[i]} ${ways.link[i]}`);
  const idle = colour("--paper"), accent = colour("--accent"), mark = colour("--mark"), ink = colour("--ink"), line = colour("--line");
  const dense = data.density && data.rows.length > 0;
  data.rows.forEach((link, row) => {
    pen.fillStyle = idle; pen.fillRect(LEFT, row * rowHeight + 0.5, width - LEFT - 8, rowHeight - 1);
  });
  if (dense) {
    pen.imageSmoothingEnabled = false;
    pen.drawImage(densityImage(), LEFT, 0, data.density.seconds * 1e6 * scale(width), data.rows.length * rowHeight);
    pen.fillStyle = colour("--bg");
    for (let row = 0; row <= data.rows.length; row++) pen.fillRect(LEFT, row * rowHeight - 0.5, width - LEFT - 8, 1);
  }
  data.rows.forEach((link, row) => {
    const y = row * rowHeight;
    for (const i of ofLink[link]) {
      const now = hops.step[i] === stepNow(), follows = marked.has(`${hops.step[i]} ${link}`);
      if (dense && !now && !follows) continue;
      pen.fillStyle = now ? mark : follows ? accent : line;
      pen.fillRect(LEFT + hops.start[i] * scale(width), y + 0.5, Math.max(hops.busy[i] * scale(width) - 0.5, 0.7), rowHeight - 1);
      if (now && follows) { pen.strokeStyle = ink; pen.strokeRect(LEFT + hops.start[i] * scale(width) + 0.5, y + 1, Math.max(hops.busy[i] * scale(width) - 1.5, 1), rowHeight - 2); }
    }
    if (link === state.link) { pen.strokeStyle = ink; pen.strokeRect(LEFT, y + 0.5, width - LEFT - 9, rowHeight - 1); }
    if (rowHeight >= 9) { pen.fillStyle = colour("--soft"); pen.textAlign = "right"; pen.textBaseline = "middle"; pen.fillText(data.links[link][0].replace("->", "→"), LEFT - 6, y + rowHeight / 2, LEFT - 8); }
  });
  timeAxis(pen, LEFT, width - 8, data.rows.length * rowHeight + 6, total);
});

function messageAt(event) {
  const box = byId("timeline").getBoundingClientRect(), link = data.rows[Math.floor((event.clientY - box.top) / rowHeight)];
  if (link === undefined) return [-1, -1];
  const time = (event.clientX - box.left - LEFT) / scale(box.width);
  return [link, ofLink[link].find((i) => hops.start[i] <= time && time <= hops.start[i] + hops.busy[i]) ?? -1];
}
byId("timeline").addEventListener("pointermove", (event) => sayLink(messageAt(event)[0]));
byId("timeline").addEventListener("pointerleave", () => sayLink(state.link));
byId("timeline").addEventListener("click", (event) => {
  const [, message] = messageAt(event);
  if (message >= 0) go(hops.shown.indexOf(hops.step[message]));
});

// ------------------------------------------------------------------ what a reader does

function show() { byId("step").value = state.at; sayStep(); sayLink(state.link); paint(); drawTimeline(); }
function go(at) { state.at = Math.max(0, Math.min(at, hops.shown.length - 1)); show(); }
function play(run) {
  clearInterval(state.timer);
  state.timer = run ? setInterval(() => state.at + 1 < hops.shown.length ? go(state.at + 1) : play(false), 700) : null;
  byId("play").textContent = run ? "Pause" : "Play";
  byId("play").setAttribute("aria-pressed", String(run));
}
function toggle() { if (!state.timer && state.at + 1 >= hops.shown.length) go(0); play(!state.timer); }
byId("first").onclick = () => go(0); byId("last").onclick = () => go(hops.shown.length - 1);
byId("back").onclick = () => go(state.at - 1); byId("on").onclick = () => go(state.at + 1);
byId("play").onclick = toggle;
byId("step").max = Math.max(hops.shown.length - 1, 0);
byId("step").oninput = (event) => go(Number(event.target.value));
byId("chunk").onchange = (event) => { state.chunk = Number(event.target.value); show(); };
byId("link").onchange = (event) => { state.link = Number(event.target.value); show(); };
document.addEventListener("keydown", (event) => {
  if (event.altKey || event.ctrlKey || event.metaKey || ["SELECT", "INPUT"].includes(event.target.tagName)) return;
  const keys = { ArrowRight: () => go(state.at + 1), ArrowLeft: () => go(state.at - 1), Home: () => go(0), End: () => go(hops.shown.length - 1) };
  if (event.key === " " && event.target.tagName !== "BUTTON") keys[" "] = toggle;
  if (keys[event.key]) { keys[event.key](); event.preventDefault(); }
});
for (let c = 0; c + 1 < ways.ptr.length && c < 2000; c++) element("option", { value: c }, byId("chunk"), `${c} (rank ${data.owner[c]})`);
data.rows.forEach((i) => element("option", { value: i }, byId("link"), data.links[i][0]));
dark.addEventListener("change", paint);
drawNetwork();
show();
