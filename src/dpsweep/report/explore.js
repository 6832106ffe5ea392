"use strict";
const content = JSON.parse(document.getElementById("content").textContent);
const PARTS = ["dataset", "backbone", "method"];
const AXES = ["epsilon", "epochs"];
const TITLES = { dataset: "Dataset", backbone: "Backbone", method: "Method", epsilon: "ε", epochs: "Epochs" };
const VIEWS = {
  grid: "over C and B", C: "along C", B: "along B", steps: "along steps T", noise: "along cumulative noise σ√T",
};
const LABELS = { C: "Clipping bound C", B: "Batch size B", steps: "Steps T (log scale)", noise: "Cumulative noise σ√T (log scale)" };
const plot = document.getElementById("plot");
const chosen = {};
const selects = {};

// Turn columns of equal length into one object a row.
function rowsOf(columns) {
  const names = Object.keys(columns).filter((name) => name !== "names");
  return columns[names[0]].map((_, i) => Object.fromEntries(names.map((name) => [name, columns[name][i]])));
}

const unique = (values) => [...new Set(values)];
const problems = () => content.problems.filter((each) => PARTS.every((part) => each[part] === chosen[part]));

function cellsOfProblem() {
  const [problem] = problems();
  problem.rows ??= rowsOf(problem.cells);
  return problem.rows;
}

function choices(key) {
  const place = PARTS.indexOf(key);
  if (place >= 0) {
    const alike = content.problems.filter((each) => PARTS.slice(0, place).every((part) => each[part] === chosen[part]));
    return unique(alike.map((each) => each[key]));
  }
  const rows = cellsOfProblem();
  return unique(rows.filter((row) => key === "epsilon" || row.epsilon === chosen.epsilon).map((row) => row[key]));
}

// Fall back to the first value if the chosen one does not exist any more.
function refresh() {
  for (const key of [...PARTS, ...AXES]) {
    const found = choices(key);
    chosen[key] = found.includes(chosen[key]) ? chosen[key] : found[0];
    selects[key].replaceChildren(...found.map((value) => new Option(value, value)));
    selects[key].value = chosen[key];
  }
  draw();
}

function control(key, title, options) {
  const label = document.getElementById("controls").appendChild(document.createElement("label"));
  label.textContent = title;
  const select = label.appendChild(document.createElement("select"));
  select.name = key;
  select.append(...options.map(([value, text]) => new Option(text, value)));
  select.addEventListener("change", () => {
    chosen[key] = select.value;
    refresh();
  });
  selects[key] = select;
}

const short = (value) => (value === null ? "–" : String(Number(value.toPrecision(4))));
const percent = (value) => (value === null ? "–" : `${(100 * value).toFixed(1)} %`);

function described(row) {
  return [
    `accuracy ${percent(row.accuracy)}, from ${percent(row.lowest)} to ${percent(row.highest)}`,
    `C = ${row.C}, B = ${row.B}`,
    `learning rate ${short(row.rate)}, ${row.seeds} seed${row.seeds === 1 ? "" : "s"}`,
    `mean gradient norm ${short(row.norm)}, clipped ${percent(row.clipped)}`,
    `steps T ${row.steps}, cumulative noise σ√T ${short(row.noise)}`,
    ...(row.diverged ? [`diverged: ${row.diverged}`] : []),
    ...(row.best ? ["the study's rule chooses this cell"] : []),
  ].join("; ");
}

// Pointing at a cell, or focusing it by keyboard, shows its numbers; a click or Enter shows its trials.
function reachable(mark, row) {
  mark.setAttribute("tabindex", 0);
  mark.setAttribute("role", "button");
  mark.setAttribute("aria-label", described(row));
  mark.dataset.cell = row.cell;
  mark.classList.add("mark");
  mark.classList.toggle("as-good", Boolean(row.as_good));
  const say = () => (document.getElementById("pointed").textContent = described(row));
  mark.addEventListener("pointerenter", say);
  mark.addEventListener("focus", say);
  mark.addEventListener("click", () => show(row.cell));
  mark.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    show(row.cell);
  });
}

function shape(name, attributes, parent, text = "") {
  const made = parent.appendChild(document.createElementNS("http://www.w3.org/2000/svg", name));
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.textContent = text;
  return made;
}

const SIDES = { left: 92, right: 14, top: 12, bottom: 52 };
const NARROWEST = 42;
const VIRIDIS = ["#440154", "#3b528b", "#21918c", "#5ec962", "#fde725"];
const COLOURS = ["#3b75af", "#d2742a", "#3f9142", "#8d5fb8", "#8a5a44", "#c2589b", "#7a7a7a", "#a39a1e", "#2a9d9d"];

// Draw an empty plot, and return the edges of the area between its axes.
function canvas(columns) {
  const width = Math.max(plot.clientWidth, SIDES.left + SIDES.right + NARROWEST * columns);
  const height = Math.min(544, 0.75 * innerHeight);
  const drawn = shape("svg", { width, height, role: "group", "aria-label": "Accuracy of cells" }, plot);
  return { drawn, right: width - SIDES.right, bottom: height - SIDES.bottom };
}

function categories(names, from, to) {
  const step = (to - from) / names.length;
  return { step, at: (name) => from + step * (names.indexOf(name) + 0.5), ticks: names.map((name) => [name, name]) };
}

function numbers(values, from, to, scale, ticks, text) {
  const [low, high] = [Math.min(...values), Math.max(...values)].map(scale);
  const room = 0.06 * (high - low) || 0.1;
  const at = (value) => from + ((scale(value) - low + room) / (high - low + 2 * room)) * (to - from);
  const [first, last] = [Math.min(from, to), Math.max(from, to)];
  return { at, ticks: ticks(low, high).filter((value) => at(value) >= first && at(value) <= last).map((value) => [value, text(value)]) };
}

// Ticks at 1, 2 and 5 times powers of ten.
const around = (low, high) => {
  const powers = Array.from({ length: Math.ceil(high) - Math.floor(low) + 1 }, (_, i) => 10 ** (Math.floor(low) + i));
  return powers.flatMap((power) => [power, 2 * power, 5 * power]);
};
const evenly = (low, high) => {
  const step = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2].find((each) => high - low <= 7 * each) ?? 0.2;
  return Array.from({ length: Math.round(1 / step) + 1 }, (_, i) => i * step);
};

function axes({ drawn, right, bottom }, x, y, xTitle, yTitle) {
  for (const [value, text] of x.ticks) shape("text", { x: x.at(value), y: bottom + 18, "text-anchor": "middle" }, drawn, text);
  for (const [value, text] of y.ticks) shape("text", { x: SIDES.left - 8, y: y.at(value) + 4, "text-anchor": "end" }, drawn, text);
  shape("text", { x: (SIDES.left + right) / 2, y: bottom + 42, "text-anchor": "middle" }, drawn, xTitle);
  const middle = (SIDES.top + bottom) / 2;
  shape("text", { x: 14, y: middle, "text-anchor": "middle", transform: `rotate(-90 14 ${middle})` }, drawn, yTitle);
}

// Cells that are as good as the best have a frame.
function squares(rows) {
  const [bounds, sizes] = ["C", "B"].map((axis) => unique(inOrder(rows, axis)));
  const room = canvas(bounds.length);
  const x = categories(bounds, SIDES.left, room.right);
  const y = categories(sizes, room.bottom, SIDES.top);
  axes(room, x, y, LABELS.C, LABELS.B);
  const known = rows.map((row) => row.accuracy).filter((value) => value !== null);
  const [low, high] = [Math.min(...known), Math.max(...known)];
  for (const row of [...rows].sort((one, other) => one.as_good - other.as_good)) {
    const place = ((row.accuracy - low) / (high - low || 1)) * (VIRIDIS.length - 1);
    const below = Math.min(Math.floor(place), VIRIDIS.length - 2);
    const fill = `color-mix(in srgb, ${VIRIDIS[below + 1]} ${100 * (place - below)}%, ${VIRIDIS[below]})`;
    const cell = shape("g", {}, room.drawn);
    shape("rect", { x: x.at(row.C) - x.step / 2 + 2, y: y.at(row.B) + y.step / 2 + 2, width: x.step - 4, height: -y.step - 4, style: `fill: ${fill}` }, cell);
    const ink = place < 2.4 ? "#ffffff" : "#000000";
    shape("text", { x: x.at(row.C), y: y.at(row.B) + 4, "text-anchor": "middle", style: `fill: ${ink}` }, cell, percent(row.accuracy).replace(" %", ""));
    reachable(cell, row);
  }
}

function curves(rows, axis) {
  const other = axis === "C" ? "B" : "C";
  const names = unique(inOrder(rows, axis));
  const named = axis === "C" || axis === "B";
  const room = canvas(named ? names.length : 1);
  const whole = (value) => value;
  const x = named
    ? categories(names, SIDES.left, room.right)
    : numbers(names, SIDES.left, room.right, Math.log10, around, short);
  const seen = rows.flatMap((row) => [row.lowest, row.highest, row.accuracy]).filter((value) => value !== null);
  const y = numbers(seen, room.bottom, SIDES.top, whole, evenly, percent);
  for (const [value] of y.ticks) shape("line", { x1: SIDES.left, x2: room.right, y1: y.at(value), y2: y.at(value), class: "rule" }, room.drawn);
  axes(room, x, y, LABELS[axis], "Macro accuracy (bars: lowest to highest seed)");
  const legend = element("ul", "", plot);
  legend.className = "legend";
  unique(inOrder(rows, other)).forEach((value, number) => {
    const colour = COLOURS[number % COLOURS.length];
    const line = inOrderOf(rows.filter((row) => row[other] === value && row.accuracy !== null), axis);
    const points = line.map((row) => `${x.at(row[axis])},${y.at(row.accuracy)}`).join(" ");
    shape("polyline", { points, style: `stroke: ${colour}`, class: "curve" }, room.drawn);
    for (const row of line) {
      const [cx, cy] = [x.at(row[axis]), y.at(row.accuracy)];
      shape("line", { x1: cx, x2: cx, y1: y.at(row.lowest), y2: y.at(row.highest), style: `stroke: ${colour}` }, room.drawn);
      reachable(shape("circle", { cx, cy, r: row.as_good ? 8 : 5, style: `fill: ${colour}` }, room.drawn), row);
    }
    element("li", `${other} = ${value}`, legend).style.setProperty("--colour", colour);
  });
}

// Cells are already in the order of C. Batch sizes are ordered by steps, from many to few.
function inOrderOf(rows, axis) {
  if (axis === "C") return rows;
  const key = axis === "B" ? (row) => -row.steps : (row) => row[axis];
  return [...rows].sort((one, other) => key(one) - key(other));
}
const inOrder = (rows, axis) => inOrderOf(rows, axis).map((row) => row[axis]);

function draw() {
  const rows = cellsOfProblem().filter((row) => AXES.every((axis) => row[axis] === chosen[axis]));
  plot.replaceChildren();
  document.getElementById("pointed").textContent = "";
  if (chosen.view === "grid") squares(rows);
  else curves(rows, chosen.view);
  plot.dataset.cells = rows.length;
}

function element(name, text, parent) {
  const made = parent.appendChild(document.createElement(name));
  made.textContent = text;
  return made;
}

// Unpack the trials of a problem when a reader clicks one of its cells for the first time.
async function trialsOf(problem) {
  if (!problem.trials) {
    const packed = document.getElementById(`trials-${content.problems.indexOf(problem)}`).textContent;
    const bytes = Uint8Array.from(atob(packed), (byte) => byte.charCodeAt(0));
    const plain = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    problem.trials = JSON.parse(await new Response(plain).text());
  }
  return problem.trials;
}

async function show(cell) {
  const [problem] = problems();
  const place = document.getElementById("cell");
  const trials = await trialsOf(problem);
  const number = trials.names.indexOf(cell);
  const rows = rowsOf(trials).filter((row) => row.cell === number);
  place.replaceChildren();
  element("h2", `${problem.name}/${cell}`, place);
  const scroll = element("div", "", place);
  scroll.className = "scroll";
  const table = element("table", "", scroll);
  table.className = "compact";
  const columns = {
    "Learning rate": (row) => short(row.learning_rate), Seed: (row) => row.seed,
    "Macro accuracy": (row) => percent(row.macro_accuracy), "Accuracy for choices": (row) => percent(row.selection_accuracy),
    "Mean gradient norm": (row) => short(row.mean_gradient_norm), Clipped: (row) => percent(row.clipped_fraction),
    Diverged: (row) => (row.diverged ? "yes" : "no"),
  };
  const head = table.createTHead().insertRow();
  for (const title of Object.keys(columns)) element("th", title, head).scope = "col";
  const body = table.createTBody();
  for (const row of rows) {
    const line = body.insertRow();
    line.className = row.best ? "chosen" : "";
    for (const [title, text] of Object.entries(columns)) {
      const field = line.insertCell();
      field.textContent = text(row);
      field.dataset.label = title;
    }
  }
  element("p", "Bold: the best learning rate, which is repeated with other seeds. The command that trains this cell:", place).className = "quiet";
  element("pre", content.command.replace("PROBLEM", problem.name).replace("CELL", cell), place).className = "source";
}

for (const key of [...PARTS, ...AXES]) control(key, TITLES[key], []);
control("view", "Accuracy", Object.entries(VIEWS));
chosen.view = "grid";
refresh();
addEventListener("resize", draw);
