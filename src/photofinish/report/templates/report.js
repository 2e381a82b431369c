"use strict";
// The overview is sorted by a press of a heading: by value where it has figures, cells without one last.
const SCALES = { "µs": 1e-6, ms: 1e-3 };
const value = (text) => {
  const [, number, unit] = /(-?[\d,]*\.?\d+) ?(µs|ms)?/.exec(text) ?? [];
  return number === undefined ? NaN : parseFloat(number.replaceAll(",", "")) * (SCALES[unit] ?? 1);
};
const compare = (a, b, isNumber) => (isNumber ? value(a) - value(b) : a.localeCompare(b, "en", { numeric: true }));

function sort(table, heading) {
  const place = heading.cellIndex, isNumber = heading.classList.contains("number");
  const direction = heading.ariaSort === "ascending" ? "descending" : "ascending";
  for (const other of table.tHead.rows[0].cells) other.ariaSort = other === heading ? direction : "none";
  const text = (row) => row.cells[place].textContent.trim();
  const rows = [...table.tBodies[0].rows];
  rows.sort((a, b) => {
    const missing = (text(a) === "n/a") - (text(b) === "n/a");
    return missing || compare(text(a), text(b), isNumber) * (direction === "ascending" ? 1 : -1);
  });
  table.tBodies[0].append(...rows);
}

// It shows the rows that have every word in the box above it.
function addFilter(table) {
  const rows = [...table.tBodies[0].rows], texts = rows.map((row) => row.innerText.toLowerCase());
  const label = document.createElement("label"), input = document.createElement("input");
  const count = document.createElement("output");
  input.type = "search";
  input.addEventListener("input", () => {
    const words = input.value.toLowerCase().split(/\s+/);
    rows.forEach((row, place) => { row.hidden = !words.every((word) => texts[place].includes(word)); });
    count.value = `${rows.filter((row) => !row.hidden).length} of ${rows.length}`;
  });
  label.className = "filter";
  label.append("Only rows with ", input, " ", count);
  table.parentElement.before(label);
}

const overview = document.getElementById("overview");
if (overview) {
  if (overview.tBodies[0].rows.length > 12) addFilter(overview);
  for (const heading of overview.tHead.rows[0].cells) {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...heading.childNodes);
    button.addEventListener("click", () => sort(overview, heading));
    heading.append(button);
    heading.ariaSort = "none";
  }
}

// A link to an experiment opens it.
const open = () => {
  const target = document.querySelector("details:target");
  if (target) target.open = true;
};
addEventListener("hashchange", open);
open();
