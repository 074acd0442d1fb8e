const plans = data.plans, PHASES = ["inputs", "forward", "backward", "optimizer"], state = { plan: 0, layer: "", chosen: -1 };
const several = plans.length > 1;
plans.forEach((plan, number) => { plan.number = number; plan.micros = plan.seconds * 1e6; });
const percent = (part, whole) => whole ? `${digits(100 * part / whole)} %` : "0 %";
const shown = (seconds) => micros(seconds * 1e6);
// Of a section, the place of a plan; with its name where there are two.
function place(id, plan) {
  const made = element("div", {}, byId(id));
  if (several) element("h3", {}, made, plan.name);
  return made;
}
function link(parent, text, act) {
  const made = element("button", { class: "link", type: "button" }, parent, text);
  made.addEventListener("click", act);
  return made;
}

plans.forEach((plan) => {
  if (several) element("b", {}, byId("sentences"), `${plan.name}: `);
  byId("sentences").appendChild(document.createTextNode(`${plan.sentence} `));
});
if (several) {
  const table = element("table", {}, byId("facts")), head = element("tr", {}, table);
  for (const text of ["", ...plans.map((plan) => plan.name)]) element("th", { scope: "col" }, head, text);
  for (const name of new Set(plans.flatMap((plan) => Object.keys(plan.facts)))) {
    const row = element("tr", {}, table);
    element("th", { scope: "row" }, row, name);
    for (const plan of plans) element("td", {}, row, plan.facts[name] ?? "");
  }
}

// ------------------------------------------------------------------ pictures of arrays

const AXES = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9"], MOST_CELLS = 16;
const axisNames = [...new Set(plans.flatMap((plan) => plan.axes))];
const hue = (plan, axis) => AXES[axisNames.indexOf(plan.axes[axis]) % AXES.length];
axisNames.forEach((name, k) => element("span", { class: "chip", style: `background:${AXES[k % AXES.length]};color:#fff` }, byId("axes"), name));
byId("axes").appendChild(document.createTextNode("Each picture is one array: colours cut it along the mesh axes, numbers are devices; grey is whole on every device; stripes are sums that are still open."));

// The cells of a picture along one dimension: by mesh axis the part it has, major first.
function partsOf(plan, cut) {
  let cells = [[]];
  for (const axis of cut) cells = cells.flatMap((cell) => Array.from({ length: plan.sizes[axis] }, (_, part) => [...cell, [axis, part]]));
  return cells;
}
function devicesIn(plan, parts) {
  const found = [], count = plan.sizes.reduce((a, b) => a * b, 1);
  for (let device = 0; device < count && found.length < 9; device++) {
    let rest = device;
    const at = plan.sizes.map(() => 0);
    for (let axis = plan.sizes.length - 1; axis >= 0; axis--) { at[axis] = rest % plan.sizes[axis]; rest = Math.floor(rest / plan.sizes[axis]); }
    if (parts.every(([axis, part]) => at[axis] === part)) found.push(device);
  }
  return found.length > 8 ? `${found.slice(0, 7).join(",")},…` : found.join(",");
}
function picture(plan, array, parent) {
  const figure = element("figure", {}, parent), { shape, cuts } = array;
  // Two dimensions at most: those that are cut, then the largest.
  const dims = shape.map((_, d) => d).sort((a, b) => (cuts[b].length > 0) - (cuts[a].length > 0) || shape[b] - shape[a]).slice(0, 2).sort((a, b) => a - b);
  const across = dims[dims.length - 1], down = dims.length > 1 ? dims[0] : -1;
  const length = (dim) => dim < 0 ? 14 : Math.min(Math.max(24 + 9 * Math.log2(shape[dim] / 64 + 1), 24), 74);
  const wide = length(across) * 1.25, high = down < 0 ? 14 : Math.min(length(down), 58);
  const svg = element("svg", { viewBox: `0 0 ${wide + 2} ${high + 2}`, role: "img", "aria-label": `${array.name}, ${shape.join(" × ")}: ${array.spec}` }, figure);
  element("rect", { x: 1, y: 1, width: wide, height: high, style: "fill: var(--line); fill-opacity: .45; stroke: var(--soft); stroke-width: .6" }, svg);
  const columns = partsOf(plan, cuts[across] || []), rows = down < 0 ? [[]] : partsOf(plan, cuts[down]);
  const fewer = (cells) => cells.length > MOST_CELLS ? cells.filter((_, k) => k % Math.ceil(cells.length / MOST_CELLS) === 0) : cells;
  const [xs, ys] = [fewer(columns), fewer(rows)], w = wide / xs.length, h = high / ys.length;
  ys.forEach((row, y) => xs.forEach((column, x) => {
    const parts = [...row, ...column], cell = element("g", {}, svg), devices = devicesIn(plan, parts);
    for (const [axis, part] of parts) element("rect", { x: 1 + x * w, y: 1 + y * h, width: w, height: h, fill: hue(plan, axis), "fill-opacity": 0.25 + 0.5 * part / Math.max(plan.sizes[axis] - 1, 1), style: "stroke: var(--bg); stroke-width: .7" }, cell);
    element("title", {}, cell, `devices ${devices}`);
    if (devices.length * 4.2 < w && h > 7) element("text", { x: 1 + (x + 0.5) * w, y: 1 + (y + 0.5) * h, "font-size": 7 }, cell, devices);
  }));
  for (const axis of array.partial) for (let x = -high; x < wide; x += 9) {
    const [x1, x2] = [Math.max(x, 0), Math.min(x + high, wide)];
    element("line", { x1: x1 + 1, y1: 1 + high - (x1 - x), x2: x2 + 1, y2: 1 + high - (x2 - x), stroke: hue(plan, axis), "stroke-width": 2 }, svg);
  }
  const caption = element("figcaption", {}, figure);
  element("div", {}, caption, array.short);
  element("span", {}, caption, `${shape.join(" × ")}, ${array.spec}`);
}

// ------------------------------------------------------------------ layers

// Small arrays, as a bias beside a kernel, are behind the click.
const MOST_PICTURES = 3, LEAST_PART = 0.05, layerRows = [];
function pictured(layer) {
  const size = (array) => array.shape.reduce((a, b) => a * b, 1), largest = Math.max(...layer.parameters.map(size));
  return [...layer.parameters.filter((array) => size(array) >= LEAST_PART * largest).slice(0, MOST_PICTURES), ...layer.activations];
}
function drawLayers() {
  const table = element("table", { class: "layers" }, byId("layers")), head = element("tr", {}, table);
  for (const text of ["layer", ...plans.map((plan) => several ? plan.name : "its arrays"), ...plans.map((plan) => several ? `time: ${plan.name}` : "time of a step")]) element("th", { scope: "col" }, head, text);
  const names = [...new Set(plans.flatMap((plan) => plan.layers.map((layer) => layer.name)))];
  const longest = Math.max(...plans.flatMap((plan) => plan.layers.map((layer) => layer.compute + layer.communication)), 1e-30);
  for (const name of names) {
    const row = element("tr", {}, table), found = plans.map((plan) => plan.layers.find((layer) => layer.name === name));
    const first = element("td", {}, row), count = Math.max(...found.map((layer) => layer ? layer.count : 0));
    link(first, name, () => chooseLayer(found[state.plan] ? state.plan : found.findIndex((layer) => layer), name));
    if (count > 1) element("span", { class: "legend" }, first, ` × ${count}`);
    found.forEach((layer, number) => {
      const cell = element("div", { class: "pictures" }, element("td", {}, row));
      if (!layer) return;
      const few = pictured(layer);
      for (const array of few) picture(plans[number], array, cell);
      const left = layer.parameters.length + layer.activations.length - few.length;
      if (left > 0) element("span", { class: "legend" }, cell, `+ ${left}`);
    });
    found.forEach((layer, number) => {
      const cell = element("td", { class: "nowrap" }, row);
      if (!layer) return;
      const wide = (seconds) => `width:${6 * seconds / longest}rem`;
      element("span", { class: "meter", style: `background:var(--soft);${wide(layer.compute)}` }, cell);
      element("span", { class: "meter", style: `background:var(--mark);${wide(layer.communication)}` }, cell);
      element("div", {}, cell, shown(layer.compute + layer.communication));
      element("div", { class: "legend" }, cell, `${percent(layer.communication, layer.compute + layer.communication)} sent`);
    });
    layerRows.push([name, row]);
  }
}

function chooseLayer(number, name) {
  Object.assign(state, { plan: number, layer: state.plan === number && state.layer === name ? "" : name, chosen: -1 });
  paint();
}

function sayLayer(plan, layer) {
  const panel = byId("said");
  paragraphs(panel, [layer.name, several && plan.name, layer.count > 1 && `${layer.count} of them, sharded alike`,
    `compute ${shown(layer.compute)}, communication ${shown(layer.communication)} of a step`, layer.bytes > 0 && `parameters and optimizer's state: ${bytes(layer.bytes)} per device`]);
  element("h2", {}, panel, "Tensors");
  const tensors = element("ul", { class: "tight" }, panel);
  for (const array of [...layer.parameters, ...layer.activations]) {
    const line = element("li", {}, tensors);
    if (array.class >= 0) link(line, array.name, () => choose(plan, array.class)); else element("span", {}, line, array.name);
    element("div", { class: "legend" }, line, `${array.shape.join(" × ")}, ${array.spec}, ${bytes(array.bytes)} per device`);
  }
  element("h2", {}, panel, "Operators, and the price of other shardings");
  const operators = element("ul", { class: "tight" }, panel);
  for (const number of layer.classes) {
    const line = element("li", {}, operators), c = plan.classes[number];
    link(line, `${c.name} (${c.phase})`, () => choose(plan, number));
    element("div", { class: "legend" }, line, `${c.sharded}, ${c.work}`);
  }
}

// ------------------------------------------------------------------ collectives

function drawCollectives(plan) {
  const parent = place("collectives", plan), table = element("table", { class: "dearest" }, parent), head = element("tr", {}, table);
  for (const text of ["what and why", "over", "sent", "time"]) element("th", { scope: "col" }, head, text);
  for (const sending of plan.collectives) {
    const row = element("tr", {}, table), first = element("td", {}, row);
    link(first, `${sending.kind}${sending.count > 1 ? ` × ${sending.count}` : ""}: ${sending.what}`, () => choose(plan, sending.reader >= 0 ? sending.reader : sending.class));
    element("div", { class: "legend" }, first, sending.why);
    const axis = element("td", {}, row);
    element("span", { class: "chip", style: `background:${hue(plan, sending.axis)};color:#fff` }, axis, plan.axes[sending.axis]);
    element("td", { class: "nowrap" }, row, bytes(sending.bytes));
    const time = element("td", { class: "nowrap" }, row, `${shown(sending.seconds)}, ${percent(sending.seconds, plan.sent)}`);
    element("div", { class: "legend" }, time, sending.exposed > 0 ? `${shown(sending.exposed)} exposed` : "hidden");
  }
  const { count, seconds } = plan.others;
  element("p", { class: "legend" }, parent, plan.collectives.length ? `${count ? `${count} others: ${shown(seconds)}. ` : ""}In all ${shown(plan.sent)} of a step of ${shown(plan.seconds)}.` : "Nothing is sent.");
}

// ------------------------------------------------------------------ operators, one by one

const TINTS = ["#d9dde3", "#8fc1e3", "#f2b27a", "#8fd3b6", "#dca9c9", "#f0d27a", "#a9b5f0", "#c9e08a", "#f09a9a", "#9adfe3"];
function tint(plan, kind) {
  const replicated = plan.kinds.indexOf("replicated");
  if (kind === replicated) return TINTS[0];
  if (kind < 0) return "#bbb";
  const at = kind + (replicated < 0 || kind < replicated ? 1 : 0);
  return at < TINTS.length ? TINTS[at] : `hsl(${(kind * 47) % 360} 55% 75%)`;
}

const WIDE = 215, HIGH = 24, GAP = 78;
function drawBoxes(plan) {
  const { classes } = plan, parent = place("graphs", plan), chips = element("p", { class: "legend" }, parent);
  plan.boxes = []; plan.wires = [];
  plan.kinds.forEach((text, kind) => element("span", { class: "chip", style: `background:${tint(plan, kind)}` }, chips, text));
  const columns = PHASES.map((phase) => classes.map((c, i) => [c, i]).filter(([c]) => c.phase === phase)).filter((column) => column.length);
  const spot = [], tallest = Math.max(...columns.map((column) => column.length), 0);
  columns.forEach((column, x) => column.forEach(([, i], y) => { spot[i] = [x * (WIDE + GAP) + 4, 26 + y * (HIGH + 7)]; }));
  const width = columns.length * (WIDE + GAP) - GAP + 8, height = 30 + tallest * (HIGH + 7);
  const around = element("div", { class: "scroll" }, parent);
  const svg = element("svg", { viewBox: `0 0 ${width} ${height}`, style: `max-height:none;min-width:${width * 0.75}px`, role: "group", "aria-label": "Operators and inputs" });
  around.appendChild(svg);
  columns.forEach((column, x) => element("text", { x: x * (WIDE + GAP) + WIDE / 2, y: 12, "font-size": 13, style: "fill: var(--soft)" }, svg, `${column[0][0].phase}: ${column.length}`));
  for (const [from, to, text] of plan.tensors) {
    if (from === to || !spot[from] || !spot[to]) continue;
    const [ax, ay] = spot[from], [bx, by] = spot[to], same = ax === bx;
    const [sx, ex] = same ? [ax + WIDE, bx + WIDE] : ax < bx ? [ax + WIDE, bx] : [ax, bx + WIDE];
    const bend = same ? 14 + Math.min(Math.abs(by - ay) / 12, 40) : (ex - sx) / 2;
    const path = `M${sx} ${ay + HIGH / 2}C${sx + bend} ${ay + HIGH / 2} ${same ? ex + bend : ex - bend} ${by + HIGH / 2} ${ex} ${by + HIGH / 2}`;
    plan.wires.push([from, to, element("path", { d: path, fill: "none" }, svg), text]);
  }
  classes.forEach((c, i) => {
    const box = element("g", { tabindex: 0, role: "button", "aria-label": `${c.name}: ${c.sharded}` }, svg), [x, y] = spot[i];
    element("rect", { x, y, width: WIDE, height: HIGH, rx: 4, fill: tint(plan, c.kind) }, box);
    const most = 29, words = c.name.length > most ? `${c.name.slice(0, most - 1)}…` : c.name;
    element("text", { x: x + 6, y: y + HIGH / 2 + 1, "font-size": 12, style: "fill: #15181c; text-anchor: start" }, box, words);
    element("title", {}, box, `${c.name}: ${c.sharded}`);
    box.addEventListener("click", () => choose(plan, i));
    box.addEventListener("keydown", (event) => {
      const order = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (event.key === "Enter" || event.key === " ") choose(plan, i);
      else if (order) (plan.boxes[i + order] || box).focus();
      else return;
      event.preventDefault();
    });
    plan.boxes.push(box);
  });
}

function choose(plan, i) {
  if (i < 0) return;
  const again = state.plan === plan.number && state.chosen === i;
  Object.assign(state, { plan: plan.number, layer: again ? state.layer : plan.classes[i].layer, chosen: again ? -1 : i });
  paint();
}

function paintBoxes(plan) {
  const chosen = state.plan === plan.number ? state.chosen : -1, near = new Set([chosen]);
  for (const [from, to, wire] of plan.wires) {
    const touches = from === chosen || to === chosen;
    if (touches) near.add(from).add(to);
    wire.style.stroke = touches ? (from === chosen ? "var(--mark)" : "var(--accent)") : "var(--line)";
    wire.style.strokeWidth = touches ? 2.2 : 0.6;
    wire.style.opacity = touches || chosen < 0 ? 1 : 0.25;
  }
  plan.boxes.forEach((box, i) => {
    box.style.opacity = chosen < 0 || near.has(i) ? 1 : 0.35;
    box.firstChild.style.stroke = i === chosen ? "var(--ink)" : "none";
    box.firstChild.style.strokeWidth = 2;
  });
}

function sayClass(plan, i) {
  const panel = byId("said"), c = plan.classes[i];
  const links = (end, other) => plan.wires.filter((wire) => wire[end] === i).slice(0, 8).map((wire) => `${plan.classes[wire[other]].name} (${wire[3]})`).join("; ");
  const [reads, feeds] = [links(1, 0), links(0, 1)];
  paragraphs(panel, [c.name, several && plan.name, `${c.sharded}${c.placed ? `: ${c.placed}` : ""}`, [c.work, ...c.facts].join(", "), c.source, reads && `reads ${reads}`, feeds && `read by ${feeds}`]);
  link(element("p", {}, panel), `in ${c.layer}`, () => { state.chosen = -1; state.layer = c.layer; paint(); });
  element("h2", {}, panel, "Why: with another strategy here alone");
  const list = element("ul", { class: "tight" }, panel);
  for (const line of c.why) element("li", {}, list, line);
  element("p", { class: "legend" }, panel, plan.limit ? "Time only; what is faster may exceed the memory limit." : "Time only; memory is not counted.");
}

function paint() {
  const plan = plans[state.plan], layer = plan.layers.find((each) => each.name === state.layer);
  for (const [name, row] of layerRows) row.className = name === state.layer ? "chosen" : "";
  plans.forEach((each) => { paintBoxes(each); each.drawTime(); });
  if (state.chosen >= 0) sayClass(plan, state.chosen);
  else if (layer) sayLayer(plan, layer);
  else paragraphs(byId("said"), ["What to choose", "A layer: its tensors and operators. A collective: who needs it. An operator: what other shardings would cost."]);
}

// ------------------------------------------------------------------ time

const LANE = 34, LEFT = 110, total = Math.max(...plans.map((plan) => plan.micros));
const across = (width) => (width - LEFT - 8) / (total || 1);
function drawTimes(plan) {
  const lanes = ["compute", ...plan.axes.map((axis) => `links of ${axis}`)];
  const target = element("canvas", { role: "img", "aria-label": "Compute and collectives of each mesh axis over a step" }, place("times", plan));
  plan.drawTime = canvas(target, lanes.length * LANE + 22, (pen, width) => {
    const own = (of) => of >= 0 && plan.number === state.plan && (of === state.chosen || (state.chosen < 0 && state.layer !== "" && plan.classes[of].layer === state.layer));
    lanes.forEach((name, lane) => {
      pen.fillStyle = colour("--paper"); pen.fillRect(LEFT, lane * LANE + 2, width - LEFT - 8, LANE - 4);
      pen.fillStyle = colour("--soft"); pen.textAlign = "right"; pen.textBaseline = "middle"; pen.fillText(name.slice(0, 18), LEFT - 8, lane * LANE + LANE / 2);
    });
    for (const [start, seconds, lane, , of] of plan.events) {
      pen.fillStyle = own(of) ? colour("--mark") : lane > 0 ? hue(plan, lane - 1) : of >= 0 ? tint(plan, plan.classes[of].kind) : colour("--line");
      pen.fillRect(LEFT + start * across(width), lane * LANE + 2, Math.max(seconds * across(width) - (seconds * across(width) > 3 ? 0.6 : 0), 0.6), LANE - 4);
    }
    timeAxis(pen, LEFT, width - 8, lanes.length * LANE + 5, total);
  });
  const eventAt = (event) => {
    const box = target.getBoundingClientRect(), lane = Math.floor((event.clientY - box.top) / LANE);
    const time = (event.clientX - box.left - LEFT) / across(box.width);
    return plan.events.find(([start, seconds, of]) => of === lane && start <= time && time <= start + seconds);
  };
  target.addEventListener("pointermove", (event) => {
    const found = eventAt(event), of = found && found[4] >= 0 && plan.classes[found[4]];
    byId("timesaid").textContent = found ? `${found[3]}${found[2] ? ` over ${plan.axes[found[2] - 1]}, of ${of ? of.name : "others"}` : ""}${of ? ` in ${of.layer}` : ""}: ${micros(found[1])}, from ${micros(found[0])}` : "Point at an event to read it, click to choose its operators.";
  });
  target.addEventListener("click", (event) => { const found = eventAt(event); if (found && found[4] >= 0) { state.chosen = -1; choose(plan, found[4]); } });
}

// ------------------------------------------------------------------ memory

const AREAS = ["#8f98a5", "#56b4e9", "#cc79a7", "#e69f00", "#009e73"], TALL = 220;
const sumsOf = (plan) => plan.memory.bytes[0].map((_, p) => plan.memory.bytes.reduce((sum, row) => sum + row[p], 0));
const peaks = plans.map((plan) => Math.max(...sumsOf(plan), 0)), highest = Math.max(...peaks);
function drawMemories(plan) {
  const parent = place("memories", plan), { names, forward } = plan.memory, limit = plan.limit;
  const most = Math.max(highest, limit && limit < 2 * highest ? limit : 0) * 1.05 || 1;
  const target = element("canvas", { role: "img", "aria-label": "Bytes per device at every point of a step, by what they are" }, parent);
  canvas(target, TALL + 22, (pen, width) => {
    const stack = plan.memory.bytes, count = stack[0].length, sums = sumsOf(plan);
    const x = (p) => LEFT + (width - LEFT - 8) * (p / Math.max(count, 1)), y = (b) => TALL * (1 - b / most);
    pen.fillStyle = colour("--paper"); pen.fillRect(LEFT, 0, width - LEFT - 8, TALL);
    const under = new Array(count).fill(0);
    stack.forEach((row, kind) => {
      pen.fillStyle = AREAS[kind];
      row.forEach((b, p) => { if (b > 0) pen.fillRect(x(p), y(under[p] + b), Math.max(x(p + 1) - x(p), 0.5) + 0.3, y(under[p]) - y(under[p] + b)); under[p] += b; });
    });
    pen.fillStyle = colour("--soft"); pen.textAlign = "right"; pen.textBaseline = "middle";
    for (let i = 0; i <= 4; i++) pen.fillText(bytes(most * i / 4), LEFT - 8, Math.max(y(most * i / 4), 6));
    pen.strokeStyle = colour("--mark"); pen.setLineDash([5, 4]);
    if (limit && limit <= most) { pen.beginPath(); pen.moveTo(LEFT, y(limit)); pen.lineTo(width - 8, y(limit)); pen.stroke(); }
    pen.strokeStyle = colour("--ink"); pen.beginPath(); pen.moveTo(x(forward), 0); pen.lineTo(x(forward), TALL); pen.stroke(); pen.setLineDash([]);
    // Where the buffers below are live.
    const peak = sums.indexOf(Math.max(...sums)), at = x(peak + 0.5);
    pen.fillStyle = colour("--mark"); pen.beginPath(); pen.moveTo(at - 5, 0); pen.lineTo(at + 5, 0); pen.lineTo(at, 9); pen.fill();
    pen.fillStyle = colour("--soft"); pen.textBaseline = "top"; pen.textAlign = "left"; pen.fillText(plan.microbatches > 1 ? "one microbatch: forward" : "forward", LEFT + 2, TALL + 5);
    pen.fillText("after it", Math.min(x(forward) + 4, width - 50), TALL + 5);
  })();
  const legend = element("p", { class: "legend" }, parent);
  names.forEach((name, kind) => {
    const top = Math.max(...plan.memory.bytes[kind]);
    if (top > 0) element("span", { class: "chip", style: `background:${AREAS[kind]}` }, legend, `${name.replace("_", " ")}, up to ${bytes(top)}`);
  });
  if (limit) element("span", {}, legend, `limit ${bytes(limit)}`);
  const table = element("table", { class: "buffers" }, parent), head = element("tr", {}, table);
  for (const text of ["at the peak (▼)", "", "bytes per device"]) element("th", { scope: "col" }, head, text);
  for (const buffer of plan.buffers) {
    const row = element("tr", {}, table);
    link(element("td", {}, row), buffer.what, () => choose(plan, buffer.class));
    element("span", { class: "chip", style: `background:${AREAS[names.indexOf(buffer.category)]}` }, element("td", {}, row), buffer.category.replace("_", " "));
    element("td", { class: "nowrap" }, row, `${bytes(buffer.bytes)}, ${percent(buffer.bytes, plan.peak)}`);
  }
  const { count, bytes: rest } = plan.smaller;
  element("p", { class: "legend" }, parent, `${count ? `${count} smaller ones: ${bytes(rest)}. ` : ""}In all ${bytes(plan.peak)}.`);
}

drawLayers();
plans.forEach((plan) => {
  drawCollectives(plan); drawTimes(plan); drawMemories(plan); drawBoxes(plan);
  const text = place("texts", plan);
  element("pre", { tabindex: 0 }, text, plan.summary);
});
paint();
