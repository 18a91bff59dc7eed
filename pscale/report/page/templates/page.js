"use strict";
// Sorting and filtering of tables; a page without this has all of its content.
(() => {
  const numeric = new Intl.Collator("en", { numeric: true });

  const key = (row, column) => {
    const cell = row.cells[column];
    const text = cell.textContent.trim();
    return [cell.dataset.o !== undefined ? Number(cell.dataset.o) : text === "" ? NaN : Number(text), text];
  };

  const compare = ([a, words], [b, others]) => {
    if (Number.isNaN(a) !== Number.isNaN(b)) return Number.isNaN(a) ? 1 : -1; // what has no value comes last
    return Number.isNaN(a) ? numeric.compare(words, others) : a - b;
  };

  const sort = (table, column, heading) => {
    const up = heading.getAttribute("aria-sort") !== "ascending";
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", up ? "ascending" : "descending");
    const body = table.tBodies[0];
    const rows = [...body.rows].map((row) => [key(row, column), row]);
    rows.sort(([a], [b]) => {
      const known = Number.isNaN(a[0]) === Number.isNaN(b[0]);
      return known && !up ? compare(b, a) : compare(a, b);
    });
    body.append(...rows.map(([, row]) => row));
  };

  for (const table of document.querySelectorAll("table[data-sort]")) {
    [...table.tHead.rows[0].cells].forEach((heading, column) => {
      if (!heading.textContent) return;
      const button = document.createElement("button");
      button.type = "button";
      button.append(...heading.childNodes);
      button.addEventListener("click", () => sort(table, column, heading));
      heading.append(button);
    });
  }

  const words = (row) =>
    [...row.cells].filter((cell) => cell.matches(".l, .w, th")).map((cell) => cell.textContent).join(" ").toLowerCase();

  for (const table of document.querySelectorAll("table[data-filter]")) {
    const rows = [...table.tBodies[0].rows];
    const label = document.createElement("label");
    const input = document.createElement("input");
    const count = document.createElement("output");
    label.className = "filter";
    input.type = "search";
    input.placeholder = "words in a row";
    label.append("Filter ", input, count);
    table.parentElement.before(label);
    let texts = null;
    input.addEventListener("input", () => {
      texts ??= new Map(rows.map((row) => [row, words(row)]));
      const wanted = input.value.toLowerCase().split(/\s+/);
      let shown = 0;
      for (const row of rows) {
        row.hidden = !wanted.every((word) => texts.get(row).includes(word));
        shown += !row.hidden;
      }
      count.textContent = input.value.trim() ? `${shown} of ${rows.length}` : "";
    });
  }

  for (const box of document.querySelectorAll(".scroll")) {
    const reach = () => {
      if (box.scrollWidth > box.clientWidth || box.scrollHeight > box.clientHeight) box.tabIndex = 0;
      else box.removeAttribute("tabindex");
    };
    new ResizeObserver(reach).observe(box);
  }

  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details:not([open])")];
    for (const fold of opened) fold.open = true;
  });
  addEventListener("afterprint", () => {
    for (const fold of opened) fold.open = false;
  });
})();
