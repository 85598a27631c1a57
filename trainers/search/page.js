// A trial is picked by pointing at its curve or its row, or by focus on the row's link; a reload keeps what is picked.
const all = what => [...document.querySelectorAll(what)];
let picked = null;

function pick(trial) {
  if (trial === picked) return;
  picked = trial;
  document.body.classList.toggle("picking", trial !== null);
  for (const one of all(".on")) one.classList.remove("on");
  for (const one of all(`[data-trial="${trial}"]`)) {
    one.classList.add("on");
    if (one.tagName === "g") one.parentNode.append(one); // on top of the other curves
  }
  const row = all(`tr[data-trial="${trial}"]`).pop(), heads = row ? [...row.closest("table").tHead.rows[0].cells] : [];
  const words = heads.map((head, at) => row.cells[at].textContent && `${head.textContent} ${row.cells[at].textContent}`);
  all("output")[0].textContent = words.filter(word => word).join(", ");
}

for (const path of all("g[data-trial] path[clip-path]")) { // a wide transparent line is easier to hit
  const wide = path.cloneNode();
  wide.setAttribute("class", "hit");
  path.after(wide);
}
for (const kind of ["pointerover", "focusin"]) document.addEventListener(kind, event => {
  const one = event.target.closest("[data-trial]");
  if (one) pick(one.dataset.trial);
  else if (!event.target.closest("svg, output")) pick(null);
});

const kept = JSON.parse(sessionStorage.getItem(location.pathname)), every = all("[data-refresh]")[0];
sessionStorage.removeItem(location.pathname);
if (kept) {
  all(".scroll").forEach((box, at) => box.scrollLeft = kept.boxes[at]);
  scrollTo(0, kept.top);
  pick(kept.picked);
}
if (every) setInterval(() => {
  if (document.hidden || String(getSelection())) return;
  const boxes = all(".scroll").map(box => box.scrollLeft);
  sessionStorage.setItem(location.pathname, JSON.stringify({ top: scrollY, boxes, picked }));
  location.reload();
}, 1000 * every.dataset.refresh);
