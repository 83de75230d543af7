// On a narrow screen each row of a table is a block (site.css); every cell then says which column it is of.
// Tables of more columns are figures to compare: they scroll.
document.addEventListener("DOMContentLoaded", () => {
  for (const table of document.querySelectorAll("table.docutils")) {
    const heads = [...table.querySelectorAll("thead th")].map((head) => head.textContent.trim());
    table.classList.toggle("blocks", heads.length <= 6);
    for (const row of table.querySelectorAll("tbody tr")) {
      [...row.cells].forEach((cell, column) => {
        cell.setAttribute("data-column", heads[column] ?? "");
        cell.classList.toggle("empty", cell.textContent.trim() === "");
      });
    }
  }
});
