// Words that are typed choose rows; a click on a head sorts by its column.
const table = document.querySelector("table"), body = table.tBodies[0], rows = [...body.rows];
const input = document.querySelector("input"), count = document.querySelector("output");

function choose() {
  const words = input.value.toLowerCase().split(/\s+/).filter(word => word);
  for (const row of rows) row.hidden = !words.every(word => row.textContent.toLowerCase().includes(word));
  count.textContent = `${rows.filter(row => !row.hidden).length} of ${rows.length}`;
}

const key = (row, at) => row.cells[at].textContent.replaceAll(",", ""); // 1,024 is more than 640
const number = /^[-+]?\d*\.?\d+(e[-+]?\d+)?$/i;
function compare(a, b) { // 0.25 is less than 0.5, which natural order denies
  if (number.test(a) && number.test(b)) return parseFloat(a) - parseFloat(b);
  return a.localeCompare(b, "en", { numeric: true });
}
[...table.tHead.rows[0].cells].forEach((head, at) => {
  const button = head.querySelector("button");
  button.addEventListener("click", () => {
    const down = head.getAttribute("aria-sort") === "ascending";
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const side = down ? -1 : 1;
    rows.sort((a, b) => side * compare(key(a, at).trim(), key(b, at).trim()));
    body.append(...rows);
  });
});
input.addEventListener("input", choose);
input.parentNode.hidden = false;
choose();
