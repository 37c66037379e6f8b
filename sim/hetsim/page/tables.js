"use strict";
// Tables that sort by a click on a heading; the button for light and dark.

document.querySelectorAll("table.sortable").forEach(table => {
  table.querySelectorAll("thead th").forEach((head, column) => {
    const button = head.querySelector("button");
    button.addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      table.querySelectorAll("thead th").forEach(other => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const number = head.classList.contains("number");
      const key = row => {
        const cell = row.cells[column];
        return number ? (cell.dataset.value === "" ? NaN : Number(cell.dataset.value)) : cell.textContent;
      };
      const rows = Array.from(table.tBodies[0].rows).map(row => [key(row), row]);
      rows.sort(([a], [b]) => {
        if (!number) return (up ? 1 : -1) * a.localeCompare(b, "en", {numeric: true});
        if (isNaN(a) || isNaN(b)) return isNaN(a) - isNaN(b);   // what has no value stays below
        return a === b ? 0 : (up ? 1 : -1) * (a < b ? -1 : 1);
      });
      table.tBodies[0].append(...rows.map(([, row]) => row));
    });
  });
});

{
  const button = document.createElement("button"), root = document.documentElement;
  const dark = () => (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const name = () => { button.textContent = dark() ? "Light" : "Dark"; };
  button.id = "theme";
  button.type = "button";
  button.title = "Switch between light and dark";
  button.addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    name();
    dispatchEvent(new Event("theme"));
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { name(); dispatchEvent(new Event("theme")); });
  name();
  document.querySelector("header").append(button);
}
