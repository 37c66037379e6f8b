"use strict";
// Tables that sort by a click on a heading; the button for light and dark.

document.querySelectorAll("table.sortable").forEach(table => table.querySelectorAll("thead th").forEach((head, column) => {
  head.querySelector("button").addEventListener("click", () => {
    const direction = head.getAttribute("aria-sort") === "ascending" ? -1 : 1, isNumber = head.classList.contains("number");
    const key = ({ cells: { [column]: cell } }) => (!isNumber ? cell.textContent : cell.dataset.value === "" ? NaN : Number(cell.dataset.value));
    const rows = Array.from(table.tBodies[0].rows, row => [key(row), row]);
    rows.sort(([a], [b]) => {
      if (!isNumber) return direction * a.localeCompare(b, "en", { numeric: true });
      if (isNaN(a) || isNaN(b)) return isNaN(a) - isNaN(b);   // what has no value stays below
      return a === b ? 0 : direction * (a < b ? -1 : 1);
    });
    table.querySelectorAll("thead th").forEach(other => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", direction > 0 ? "ascending" : "descending");
    table.tBodies[0].append(...rows.map(([, row]) => row));
  });
}));

{
  const root = document.documentElement, system = matchMedia("(prefers-color-scheme: dark)");
  const dark = () => (root.dataset.theme || (system.matches ? "dark" : "light")) === "dark";
  const button = Object.assign(document.createElement("button"), { id: "theme", type: "button", title: "Switch between light and dark" });
  const name = () => { button.textContent = dark() ? "Light" : "Dark"; };
  const changed = () => { name(); dispatchEvent(new Event("theme")); };
  button.addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; changed(); });
  system.addEventListener("change", changed);
  name();
  document.querySelector("header").append(button);
}
