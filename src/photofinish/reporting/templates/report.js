"use strict";
// A click on a heading sorts the overview: times, savings and costs by value, and empty cells last.
const UNITS = { µs: 1e-6, ms: 1e-3, min: 60, h: 3600 };
const value = (text) => {
  const [, number, unit] = /^~?(-?[\d,]*\.?\d+)\S* ?(µs|ms|min|h)?/.exec(text) ?? [];
  return number === undefined ? NaN : parseFloat(number.replaceAll(",", "")) * (UNITS[unit] ?? 1);
};

function sort(table, heading) {
  const direction = heading.ariaSort === "ascending" ? "descending" : "ascending";
  for (const other of table.tHead.rows[0].cells) other.ariaSort = other === heading ? direction : "none";
  const text = (row) => row.cells[heading.cellIndex].textContent.trim();
  const rows = [...table.tBodies[0].rows].sort((first, second) => {
    const [a, b] = [text(first), text(second)];
    if (!a || !b) return !a - !b;
    const order = value(a) - value(b) || a.localeCompare(b, "en", { numeric: true });
    return direction === "ascending" ? order : -order;
  });
  table.tBodies[0].append(...rows);
}

function addFilter(table) {
  const rows = [...table.tBodies[0].rows];
  const label = document.createElement("label"), input = document.createElement("input");
  const count = document.createElement("output");
  input.type = "search";
  input.addEventListener("input", () => {
    const words = input.value.toLowerCase().split(/\s+/);
    for (const row of rows) row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
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
