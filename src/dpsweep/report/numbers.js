"use strict";
// Open the folded parts around the target of a link.
function unfold() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!target) return;
  for (let each = target.closest("details"); each; each = each.parentElement.closest("details")) each.open = true;
  target.scrollIntoView();
}
addEventListener("hashchange", unfold);
addEventListener("beforeprint", () => document.querySelectorAll("details.part").forEach((each) => (each.open = true)));
unfold();

// The page contains the numbers of a figure once, as a CSV for download. Opening its table reads that CSV.

async function textOf(uri) {
  const bytes = Uint8Array.from(atob(uri.slice(uri.indexOf(",") + 1)), (byte) => byte.charCodeAt(0));
  const stream = new Blob([bytes]).stream();
  const packed = uri.startsWith("data:application/gzip");
  return new Response(packed ? stream.pipeThrough(new DecompressionStream("gzip")) : stream).text();
}

function rowsOf(csv) {
  const rows = [[]];
  for (const [, field, end] of csv.trimEnd().matchAll(/("(?:[^"]|"")*"|[^,\n]*)(,|\n|$)/g)) {
    rows.at(-1).push(field.startsWith('"') ? field.slice(1, -1).replaceAll('""', '"') : field);
    if (end === "\n") rows.push([]);
    if (end === "") break;
  }
  return rows;
}

function shown(field) {
  const value = Number(field);
  return field === "" || Number.isNaN(value) ? field : String(Number(value.toPrecision(5)));
}

function element(name, text, parent) {
  const made = parent.appendChild(document.createElement(name));
  made.textContent = text;
  return made;
}

function show([header, ...rows], place) {
  const used = header.map((_, column) => column).filter((column) => header[column] !== "trial_key");
  const varies = (column) => rows.some((row) => row[column] !== rows[0][column]);
  const fixed = used.filter((column) => rows.length > 1 && !varies(column));
  const drawn = used.filter((column) => !fixed.includes(column));
  if (fixed.length) {
    const said = fixed.map((column) => `${header[column]} ${shown(rows[0][column]) || "–"}`);
    element("p", `In every row: ${said.join(", ")}.`, place).className = "quiet";
  }
  const scroll = element("div", "", place);
  scroll.className = "scroll tall";
  scroll.tabIndex = 0;
  const table = element("table", "", scroll);
  table.className = "compact values";
  const head = table.createTHead().insertRow();
  for (const column of drawn) element("th", header[column], head).scope = "col";
  const body = table.createTBody();
  for (const row of rows) {
    const line = body.insertRow();
    for (const column of drawn) {
      const cell = line.insertCell();
      cell.textContent = shown(row[column]);
      cell.dataset.label = header[column];
    }
  }
}

for (const details of document.querySelectorAll("details.data")) {
  details.addEventListener("toggle", async () => {
    const place = details.querySelector("div");
    if (!details.open || place.childElementCount) return;
    const source = document.getElementById(details.dataset.source);
    show(rowsOf(await textOf(source.href)), place);
  });
}
