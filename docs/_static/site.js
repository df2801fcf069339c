// Levels of headings, a filter above long tables, and mistakes as cards.
document.addEventListener("DOMContentLoaded", () => {
  // The theme's captions are headings without a level.
  for (const caption of document.querySelectorAll('p.caption[role="heading"]')) caption.setAttribute("aria-level", "2");
  const page = location.pathname.split("/").pop();
  const tables = [...document.querySelectorAll("article table")];
  if (page === "mistakes.html") {
    for (const table of tables) {
      table.classList.add("mistakes");
      const heads = [...table.querySelectorAll("thead th")].map((head) => head.textContent.trim());
      for (const row of table.querySelectorAll("tbody tr")) {
        [...row.cells].slice(1).forEach((cell, i) => (cell.dataset.label = heads[i + 1]));
      }
    }
  }
  if (!["api.html", "mistakes.html", "jax_names.html", "from_volta.html"].includes(page) || tables.length === 0) return;
  const input = document.createElement("input");
  input.type = "search";
  input.className = "table-filter";
  input.placeholder = "Filter";
  input.setAttribute("aria-label", "Filter the rows of the tables on this page");
  const first = tables[0].closest(".table-wrapper") ?? tables[0];
  (document.querySelector("article h1")?.nextElementSibling ?? first).before(input);
  input.addEventListener("input", () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const table of tables) {
      for (const row of table.querySelectorAll("tbody tr")) {
        const text = row.textContent.toLowerCase();
        row.hidden = !words.every((word) => text.includes(word));
        row.style.display = row.hidden ? "none" : "";
      }
    }
  });
});
