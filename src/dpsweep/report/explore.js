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

// Columns of equal length to one object a row.
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

// A choice that is no longer there gives way to the first.
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
  ].join("<br>");
}

function squares(rows) {
  const [x, y] = ["C", "B"].map((axis) => unique(inOrder(rows, axis)));
  const at = (bound, size) => rows.find((row) => row.C === bound && row.B === size);
  const each = (value) => y.map((size) => x.map((bound) => (at(bound, size) ? value(at(bound, size)) : null)));
  return [
    {
      type: "heatmap", x, y, z: each((row) => row.accuracy), colorscale: "Viridis", xgap: 2, ygap: 2,
      text: each((row) => percent(row.accuracy)), texttemplate: "%{text}", hovertext: each(described),
      hoverinfo: "text", customdata: each((row) => row.cell),
      showscale: innerWidth > 640, colorbar: { title: { text: "Accuracy" }, tickformat: ".0%" },
    },
  ];
}

// The cell that the rule of choice takes has a frame.
function frame(rows) {
  return rows.filter((row) => row.best).map((row) => {
    const [x, y] = ["C", "B"].map((axis) => unique(inOrder(rows, axis)).indexOf(row[axis]));
    return { type: "rect", x0: x - 0.5, x1: x + 0.5, y0: y - 0.5, y1: y + 0.5, line: { color: "#d1001c", width: 4 } };
  });
}

function lines(rows, axis) {
  const other = axis === "C" ? "B" : "C";
  return unique(inOrder(rows, other)).map((value) => {
    const line = inOrderOf(rows.filter((row) => row[other] === value), axis);
    return {
      type: "scatter", mode: "lines+markers", name: `${other} = ${value}`,
      x: line.map((row) => row[axis]), y: line.map((row) => row.accuracy),
      hovertext: line.map(described), hoverinfo: "text", customdata: line.map((row) => row.cell),
      marker: {
        size: line.map((row) => (row.best ? 16 : 8)), line: { width: line.map((row) => (row.best ? 3 : 0)), color: "#d1001c" },
      },
      error_y: {
        array: line.map((row) => row.highest - row.accuracy), arrayminus: line.map((row) => row.accuracy - row.lowest),
        thickness: 1, width: 3,
      },
    };
  });
}

// Cells come in the order of C; batch sizes have the order of steps, from many to few.
function inOrderOf(rows, axis) {
  if (axis === "C") return rows;
  const key = axis === "B" ? (row) => -row.steps : (row) => row[axis];
  return [...rows].sort((one, other) => key(one) - key(other));
}
const inOrder = (rows, axis) => inOrderOf(rows, axis).map((row) => row[axis]);

function draw() {
  const rows = cellsOfProblem().filter((row) => AXES.every((axis) => row[axis] === chosen[axis]));
  const colours = getComputedStyle(document.body);
  const [text, line] = ["--text", "--line"].map((name) => colours.getPropertyValue(name));
  const grid = chosen.view === "grid";
  const labels = grid ? ["C", "B"] : [chosen.view];
  const axis = (name) => ({
    title: { text: LABELS[name] }, gridcolor: line, automargin: true,
    ...(name === "C" || name === "B"
      ? { type: "category", categoryorder: "array", categoryarray: unique(inOrder(rows, name)) }
      : { type: "log" }),
  });
  Plotly.react(
    plot,
    grid ? squares(rows) : lines(rows, chosen.view),
    {
      margin: { t: 20, r: 10 }, paper_bgcolor: "transparent", plot_bgcolor: "transparent", font: { color: text },
      xaxis: axis(labels[0]),
      yaxis: grid ? axis("B") : { title: { text: "Macro accuracy (bars: lowest to highest seed)" }, tickformat: ".0%", gridcolor: line, automargin: true },
      legend: { orientation: "h", y: -0.25 }, hoverlabel: { align: "left" },
      shapes: grid ? frame(rows) : [],
    },
    { responsive: true, displayModeBar: false },
  );
  plot.dataset.cells = rows.length;
}

function element(name, text, parent) {
  const made = parent.appendChild(document.createElement(name));
  made.textContent = text;
  return made;
}

// Trials are unpacked when a cell of their problem is clicked for the first time.
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
    "Macro accuracy": (row) => percent(row.macro_accuracy), "Chosen by": (row) => percent(row.selection_accuracy),
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
plot.on("plotly_click", (event) => show(event.points[0].customdata));
