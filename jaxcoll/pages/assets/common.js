"use strict";
// Shared by all pages. Names are only ever set as text.
const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";

function element(name, attributes, parent, text) {
  const made = name === "svg" || (parent && parent.namespaceURI === SVG)
    ? document.createElementNS(SVG, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  if (parent) parent.appendChild(made);
  return made;
}

function paragraphs(panel, lines) {
  panel.replaceChildren(...lines.filter((line) => line).map((line, i) => {
    const made = document.createElement("p");
    if (i === 0) element("b", {}, made, line); else made.textContent = line;
    return made;
  }));
}

const digits = (x) => Number(x.toPrecision(4)).toString();
function bytes(x) { for (const [u, s] of [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) if (x >= s) return `${digits(x / s)} ${u}`; return `${digits(x)} B`; }
function micros(x) { return x >= 1e6 ? `${digits(x / 1e6)} s` : x >= 1e3 ? `${digits(x / 1e3)} ms` : `${digits(x)} µs`; }

const dark = window.matchMedia("(prefers-color-scheme: dark)");
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
// Idle is close to the paper, busy far from it, in either theme.
const RAMPS = { light: [[250, 205, 160], [222, 73, 104], [90, 22, 126]], dark: [[92, 50, 98], [226, 82, 96], [255, 222, 160]] };
function load(share) {
  const ramp = RAMPS[dark.matches ? "dark" : "light"], at = 2 * Math.min(Math.max(share, 0), 1), i = Math.min(Math.floor(at), 1);
  return `rgb(${ramp[i].map((x, c) => Math.round(x + (at - i) * (ramp[i + 1][c] - x))).join(",")})`;
}

// A canvas of the size it has on the screen, drawn again when that or the theme changes.
function canvas(target, height, draw) {
  const render = () => {
    const ratio = window.devicePixelRatio || 1, width = target.clientWidth;
    target.style.height = `${height}px`;
    target.width = width * ratio; target.height = height * ratio;
    const pen = target.getContext("2d");
    pen.scale(ratio, ratio);
    pen.font = "11px system-ui, sans-serif";
    draw(pen, width, height);
  };
  window.addEventListener("resize", render);
  dark.addEventListener("change", render);
  return render;
}

function timeAxis(pen, left, right, y, total) {
  pen.fillStyle = colour("--soft"); pen.textAlign = "center"; pen.textBaseline = "top";
  for (let i = 0; i <= 5; i++) pen.fillText(micros(total * i / 5), Math.min(left + (right - left) * i / 5, right - 14), y);
}
