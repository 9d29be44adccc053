// Show only the rows of the parameter table that contain every word in the search field.
const search = document.getElementById("search");
if (search) {
  const found = document.getElementById("found");
  const rows = [...document.querySelectorAll("#parameters-table tbody tr")];
  const texts = rows.map((row) => [...row.cells].map((cell) => cell.textContent).join(" ").toLowerCase());
  search.addEventListener("input", () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    rows.forEach((row, index) => {
      row.hidden = !words.every((word) => texts[index].includes(word));
      if (!row.hidden) shown += 1;
    });
    found.value = fill(search.dataset.found, { shown, all: rows.length });
  });
}
