/* On a phone the rows of a table stand as blocks: each cell has its column's name. */
document.addEventListener("DOMContentLoaded", () => {
  for (const table of document.querySelectorAll("table.docutils")) {
    const heads = [...table.querySelectorAll("thead th")].map((th) => th.innerText);
    if (heads.length < 3) continue;
    table.classList.add("in-blocks");
    for (const row of table.querySelectorAll("tbody tr")) {
      [...row.cells].forEach((cell, i) => {
        // a first cell says itself what the block is about, unless it is a number
        if (i || /^\d/.test(cell.innerText)) cell.dataset.column = heads[i];
      });
    }
  }
});
