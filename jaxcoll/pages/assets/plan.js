const classes = data.classes, PHASES = ["inputs", "forward", "backward", "optimizer"], state = { chosen: -1 };
const TINTS = ["#d9dde3", "#8fc1e3", "#f2b27a", "#8fd3b6", "#dca9c9", "#f0d27a", "#a9b5f0", "#c9e08a", "#f09a9a", "#9adfe3"];
const replicated = data.kinds.indexOf("replicated");
const tint = (kind) => kind === replicated ? TINTS[0] : kind < 0 ? "#bbb"
  : kind + (replicated < 0 || kind < replicated ? 1 : 0) < TINTS.length ? TINTS[kind + (replicated < 0 || kind < replicated ? 1 : 0)] : `hsl(${(kind * 47) % 360} 55% 75%)`;
data.kinds.forEach((text, kind) => element("span", { class: "chip", style: `background:${tint(kind)}` }, byId("kinds"), text));

// ------------------------------------------------------------------ layers

const WIDE = 215, HIGH = 24, GAP = 78, boxes = [], wires = [];
function drawLayers() {
  const columns = PHASES.map((phase) => classes.map((c, i) => [c, i]).filter(([c]) => c.phase === phase)).filter((column) => column.length);
  const place = [], tallest = Math.max(...columns.map((column) => column.length));
  columns.forEach((column, x) => column.forEach(([, i], y) => { place[i] = [x * (WIDE + GAP) + 4, 26 + (y + (tallest - column.length) / 2 * 0) * (HIGH + 7)]; }));
  const width = columns.length * (WIDE + GAP) - GAP + 8, height = 30 + tallest * (HIGH + 7);
  const svg = element("svg", { viewBox: `0 0 ${width} ${height}`, style: `max-height:none;min-width:${width * 0.75}px`, role: "group", "aria-label": "Operators and inputs" });
  byId("layers").appendChild(svg);
  columns.forEach((column, x) => element("text", { x: x * (WIDE + GAP) + WIDE / 2, y: 12, "font-size": 13, style: "fill: var(--soft)" }, svg, `${column[0][0].phase}: ${column.length}`));
  for (const [from, to, text] of data.tensors) {
    if (from === to || !place[from] || !place[to]) continue;
    const [ax, ay] = place[from], [bx, by] = place[to], same = ax === bx;
    const [sx, ex] = same ? [ax + WIDE, bx + WIDE] : ax < bx ? [ax + WIDE, bx] : [ax, bx + WIDE];
    const bend = same ? 14 + Math.min(Math.abs(by - ay) / 12, 40) : (ex - sx) / 2;
    const path = `M${sx} ${ay + HIGH / 2}C${sx + bend} ${ay + HIGH / 2} ${same ? ex + bend : ex - bend} ${by + HIGH / 2} ${ex} ${by + HIGH / 2}`;
    wires.push([from, to, element("path", { d: path, fill: "none" }, svg), text]);
  }
  classes.forEach((c, i) => {
    const box = element("g", { tabindex: 0, role: "button", "aria-label": `${c.name}: ${c.sharded}` }, svg), [x, y] = place[i];
    element("rect", { x, y, width: WIDE, height: HIGH, rx: 4, fill: tint(c.kind) }, box);
    const most = 29, words = c.name.length > most ? `${c.name.slice(0, most - 1)}…` : c.name;
    element("text", { x: x + 6, y: y + HIGH / 2 + 1, "font-size": 12, style: "fill: #15181c; text-anchor: start" }, box, words);
    element("title", {}, box, `${c.name}: ${c.sharded}`);
    box.addEventListener("click", () => choose(i));
    box.addEventListener("keydown", (event) => {
      const order = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (event.key === "Enter" || event.key === " ") choose(i);
      else if (order) (boxes[i + order] || box).focus();
      else return;
      event.preventDefault();
    });
    boxes.push(box);
  });
}

function choose(i) {
  state.chosen = state.chosen === i ? -1 : i;
  paintLayers(); sayClass(); drawTime();
}

function paintLayers() {
  const near = new Set([state.chosen]);
  for (const [from, to, wire] of wires) {
    const touches = from === state.chosen || to === state.chosen;
    if (touches) near.add(from).add(to);
    wire.style.stroke = touches ? (from === state.chosen ? "var(--mark)" : "var(--accent)") : "var(--line)";
    wire.style.strokeWidth = touches ? 2.2 : 0.6;
    wire.style.opacity = touches || state.chosen < 0 ? 1 : 0.25;
  }
  boxes.forEach((box, i) => {
    box.style.opacity = state.chosen < 0 || near.has(i) ? 1 : 0.35;
    box.firstChild.style.stroke = i === state.chosen ? "var(--ink)" : "none";
    box.firstChild.style.strokeWidth = 2;
  });
}

function sayClass() {
  const panel = byId("said");
  if (state.chosen < 0) return paragraphs(panel, ["Operators and inputs", "Each box is one kind of operator or input; identical layers share a box. Colours are shardings."]);
  const c = classes[state.chosen];
  const links = (end, other) => wires.filter((wire) => wire[end] === state.chosen).slice(0, 8).map((wire) => `${classes[wire[other]].name} (${wire[3]})`).join("; ");
  const [reads, feeds] = [links(1, 0), links(0, 1)];
  paragraphs(panel, [c.name, `${c.sharded}${c.placed ? `: ${c.placed}` : ""}`, [c.work, ...c.facts].join(", "), c.source, reads && `reads ${reads}`, feeds && `read by ${feeds}`]);
  element("h2", {}, panel, "Why: with another strategy here alone");
  const list = element("ul", { style: "padding-left:1.1rem;margin:0" }, panel);
  for (const line of c.why) element("li", {}, list, line);
  element("p", { class: "legend" }, panel, data.limit ? "Time only; what is faster may exceed the memory limit." : "Time only; memory is not counted.");
}

// ------------------------------------------------------------------ time

const lanes = ["compute", ...data.axes.map((axis) => `links of ${axis}`)], LANE = 34, LEFT = 130, total = data.seconds * 1e6;
const across = (width) => (width - LEFT - 8) / (total || 1);
const drawTime = canvas(byId("time"), lanes.length * LANE + 22, (pen, width) => {
  lanes.forEach((name, lane) => {
    pen.fillStyle = colour("--paper"); pen.fillRect(LEFT, lane * LANE + 2, width - LEFT - 8, LANE - 4);
    pen.fillStyle = colour("--soft"); pen.textAlign = "right"; pen.textBaseline = "middle"; pen.fillText(name.slice(0, 22), LEFT - 8, lane * LANE + LANE / 2);
  });
  for (const [start, seconds, lane, , of] of data.events) {
    const own = of >= 0 && of === state.chosen;
    pen.fillStyle = own ? colour("--mark") : of >= 0 && lane === 0 ? tint(classes[of].kind) : lane === 0 ? colour("--line") : colour("--accent");
    pen.fillRect(LEFT + start * across(width), lane * LANE + 2, Math.max(seconds * across(width) - (seconds * across(width) > 3 ? 0.6 : 0), 0.6), LANE - 4);
  }
  timeAxis(pen, LEFT, width - 8, lanes.length * LANE + 5, total);
});
function eventAt(event) {
  const box = byId("time").getBoundingClientRect(), lane = Math.floor((event.clientY - box.top) / LANE);
  const time = (event.clientX - box.left - LEFT) / across(box.width);
  return data.events.find(([start, seconds, of]) => of === lane && start <= time && time <= start + seconds);
}
byId("time").addEventListener("pointermove", (event) => {
  const found = eventAt(event);
  byId("timesaid").textContent = found ? `${found[3]}${found[2] ? ` over ${data.axes[found[2] - 1]}, of ${found[4] < 0 ? "others" : classes[found[4]].name}` : ""}: ${micros(found[1])}, from ${micros(found[0])}` : "Point at an event to read it, click to choose its operators.";
});
byId("time").addEventListener("click", (event) => { const found = eventAt(event); if (found && found[4] >= 0) { state.chosen = -1; choose(found[4]); } });

// ------------------------------------------------------------------ memory

const AREAS = ["#8f98a5", "#56b4e9", "#cc79a7", "#e69f00", "#009e73"], TALL = 220;
const drawMemory = canvas(byId("memory"), TALL + 22, (pen, width) => {
  const stack = data.memory.bytes, count = stack[0].length;
  const sums = stack[0].map((_, p) => stack.reduce((sum, row) => sum + row[p], 0));
  const peak = Math.max(...sums), most = Math.max(peak, data.limit && data.limit < 2 * peak ? data.limit : 0) * 1.05 || 1;
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
  if (data.limit && data.limit <= most) { pen.beginPath(); pen.moveTo(LEFT, y(data.limit)); pen.lineTo(width - 8, y(data.limit)); pen.stroke(); }
  pen.strokeStyle = colour("--ink"); pen.beginPath(); pen.moveTo(x(data.memory.forward), 0); pen.lineTo(x(data.memory.forward), TALL); pen.stroke(); pen.setLineDash([]);
  pen.textBaseline = "top"; pen.textAlign = "left"; pen.fillText(data.microbatches > 1 ? "one microbatch: forward" : "forward", LEFT + 2, TALL + 5);
  pen.fillText("after it", x(data.memory.forward) + 4, TALL + 5);
});
data.memory.names.forEach((name, kind) => {
  const most = Math.max(...data.memory.bytes[kind]);
  if (most > 0) element("span", { class: "chip", style: `background:${AREAS[kind]}` }, byId("memorysaid"), `${name.replace("_", " ")}, up to ${bytes(most)}`);
});
if (data.limit) element("span", {}, byId("memorysaid"), `limit ${bytes(data.limit)}`);

byId("summary").textContent = data.summary;
drawLayers(); paintLayers(); sayClass(); drawTime(); drawMemory();
