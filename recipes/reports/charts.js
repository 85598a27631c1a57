// Draws the charts of a page: hover, zoom, smoothing, logarithmic axes and a choice of the x axis; what has a name is
// marked wherever it appears. Texts of a run reach the page as text only. With data-live on the body, the page takes
// over what changed, from its server; as a file it loads itself anew and keeps what the reader chose.
"use strict";
(() => {
  const id = name => document.getElementById(name), all = what => [...document.querySelectorAll(what)];
  const ink = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const kept = JSON.parse(sessionStorage.getItem(location.pathname)) ?? {};
  sessionStorage.removeItem(location.pathname);
  const zoomed = new Map(kept.zoomed), logarithmic = new Map(kept.logarithmic); // by axis or title
  const chosen = new Map(kept.chosen), off = new Set(kept.off); // x axes; hidden curves, "title/group"
  let data = JSON.parse(id("curves").textContent), plots = [], picked = null;

  const axisOf = chart => chosen.get(String(chart.axes)) ?? chart.axes[0];
  const scaleKey = (which, chart) => which === "x" ? `x/${axisOf(chart)}` : `y/${chart.title}`;
  const isLog = (which, chart) => chart.mayBe.includes(which)
    && (logarithmic.get(scaleKey(which, chart)) ?? chart.logarithmic.includes(which));

  function short(value, step = Infinity) { // a number, with enough digits to differ from others at this distance
    if (value == null) return "–";
    const size = Math.abs(value), whole = size < 1e6 ? Math.ceil(Math.log10(size || 1)) : 0;
    const rounded = +value.toPrecision(Math.min(15, Math.max(4, whole, 2 + Math.ceil(Math.log10(size / step)))));
    if (size >= 1e6) return rounded.toExponential().replace("+", "");
    return size >= 1e4 ? rounded.toLocaleString("en") : String(rounded);
  }
  function clock(seconds, step = Infinity) {
    const two = part => String(Math.floor(part)).padStart(2, "0");
    if (seconds < 60) return `${+seconds.toFixed(step < 0.1 ? 3 : 1)} s`;
    const minutes = Math.floor(seconds / 60), hours = Math.floor(seconds / 3600), second = two(seconds % 60);
    if (seconds < 3600) return `${minutes}:${second} min`;
    return `${hours}:${two(minutes % 60)}${step < 60 ? `:${second}` : ""} h`;
  }
  function place(axis, value, step) {
    if (axis === "time") return clock(value, step);
    const whole = Math.round(value), isWhole = COUNTS.includes(axis) || Math.abs(value - whole) < 1e-6 * value;
    return isWhole ? whole.toLocaleString("en") : short(value, step);
  }

  const COUNTS = ["updates", "samples", "trial"]; // axes of whole numbers
  const STEPS = Array.from({ length: 15 }, (_, power) => [1, 2, 5].map(step => step * 10 ** power)).flat();
  const sorted = values => values.map((_, at) => at).sort((a, b) => values[a] - values[b]); // the places
  const named = words => (_, ticks) => { // log axes have empty ones
    const known = ticks.filter(tick => tick != null);
    const step = Math.min(...known.slice(1).map((tick, at) => tick - known[at]));
    return ticks.map(tick => tick == null ? "" : words(tick, step));
  };

  function mean(values, share) { // running, centred, over this share of all points
    const half = Math.ceil(share * values.length / 2), sums = [0], counts = [0];
    for (const value of values) {
      sums.push(sums.at(-1) + (value ?? 0));
      counts.push(counts.at(-1) + (value == null ? 0 : 1));
    }
    return values.map((_, at) => {
      const low = Math.max(0, at - half), high = Math.min(values.length, at + half + 1);
      return counts[high] > counts[low] ? (sums[high] - sums[low]) / (counts[high] - counts[low]) : null;
    });
  }

  function drawn(chart, axis, share, logX, logY) { // one table of uPlot for all curves, and a series each
    const spot = (_, value) => value == null ? "–" : chart.ticks[Math.round(value)] ?? place(axis, value);
    const elsewhere = (u, at) => { // where a value is from, if not from near the pointer
      const [here, there] = [u.cursor.idx, at].map(index => u.data[0][index]), { min, max } = u.scales.x;
      return Math.abs(there - here) > 0.01 * (max - min) ? ` at ${place(axis, there)}` : "";
    };
    const legend = (u, value, _, at) => short(value) + elsewhere(u, at);
    const tables = [], series = [{ label: axis, value: spot }], below = [], groups = new Set();
    const add = (x, y, look) => {
      const order = sorted(x).filter(at => x[at] != null && (!logX || x[at] > 0));
      const xs = order.map(at => x[at]), names = new Map();
      order.forEach((from, at) => { // dots over each other part by nothing that is seen: uPlot has one at a place
        if (look.scattered && xs[at] <= xs[at - 1]) xs[at] = xs[at - 1] + 1e-9 * (Math.abs(xs[at - 1]) || 1);
        if (look.names) names.set(xs[at], Array.isArray(look.names) ? look.names[from] : look.names);
      });
      tables.push([xs, order.map(at => logY && !(y[at] > 0) ? null : y[at])]);
      const points = { show: y.filter(value => value != null).length === 1, size: 5, fill: look.stroke };
      series.push({ spanGaps: true, width: 2, points, value: legend, ...look, names });
    };
    const curves = chart.curves.map((curve, at) => ({ ...curve, key: `${chart.title}/${curve.group ?? at}` }));
    if (chart.stacked) {
      for (const curve of curves) {
        const hidden = off.has(curve.key);
        curve.top = curve.values.map((value, at) => (below.at(-1)?.[at] ?? 0) + (hidden ? 0 : value ?? 0));
        below.push(curve.top);
      }
      curves.reverse(); // the highest first, the lower ones over it
    }
    for (const curve of curves) {
      const { key, look, names, width = 2, values, dashes: dash } = curve;
      const x = data.points[curve.at][axis] ?? [], stroke = ink(`--k${curve.colour.slice(1)}`), show = !off.has(key);
      const label = groups.has(key) ? "" : curve.label;
      const one = { label, stroke, show, dash, key, width, names, auto: curve.scales ?? true };
      const isScattered = ["points", "hollow", "top", "bottom"].includes(look);
      one.class = !label ? "raw" : chart.stacked || isScattered ? "spot" : "line";
      groups.add(key);
      if (names) one.value = (u, _, s) => { // of the one that is pointed at
        const at = u.focused ?? 0, i = u.cursor.idxs?.[at], own = at && i != null && u.series[at].key === key;
        return own ? `${short(u.data[at][i])} (${u.series[at].names.get(u.data[0][i])})` : "–";
      };
      if (chart.stacked) {
        const back = new Map(x.map((value, i) => [value, values[i]]));
        const value = (u, _, s, i) => short(back.get(u.data[0][i])) + elsewhere(u, i);
        add(x, curve.top, { ...one, fill: stroke, width: 0, value });
      } else if (look === "smooth") {
        add(x, values, { ...one, dash: [], width: 1, alpha: 0.3, class: "raw", label: "" });
        const raw = tables.length;
        add(x, mean(values, share), {
          ...one,
          value: (u, value, _, i) =>
            value == null ? "–" : `${short(value)} (${short(u.data[raw][i])})${elsewhere(u, i)}`
        });
      } else if (isScattered) {
        const points = { show: true, size: 6, width: 1.5, stroke, fill: look === "hollow" ? ink("--paper") : stroke };
        const how = { ...one, scattered: true, paths: () => null, points }, edge = { top: 0.97, bottom: 0.03 }[look];
        if (edge === undefined) add(x, values, how);
        else add(x, values.map(() => edge), { ...how, scale: "edge", value: () => "" });
      } else if (look === "highest" || look === "lowest") {
        const best = look === "highest" ? Math.max : Math.min, soFar = [], order = sorted(x);
        order.forEach((from, at) => soFar.push(best(...[soFar[at - 1], values[from]].filter(it => it != null))));
        add(order.map(at => x[at]), soFar.map(it => isFinite(it) ? it : null),
          { ...one, paths: uPlot.paths.stepped({ align: 1 }) });
      } else if (look === "step") {
        add(x, values, { ...one, paths: uPlot.paths.stepped({ align: 1 }) });
      } else {
        add(x, values, look === "dots" && values.length <= 60 ? { ...one, points: { size: 5, fill: stroke } } : one);
      }
    }
    return { series, table: uPlot.join(tables) };
  }

  const distance = (u, s, at, y, here) => u.series[s].scattered ? apart(u, s, at, u.data[s][at]) : y - here;
  const apart = (u, index, at, y) => // of a dot from the pointer, in pixels
    Math.hypot(u.valToPos(u.data[0][at], "x") - u.cursor.left, u.valToPos(y, u.series[index].scale) - u.cursor.top);

  function nearest(u, index, at) { // the nearest point that this curve has
    const values = u.data[index];
    if (u.series[index].scattered) {
      let best = at, least = Infinity;
      values.forEach((value, here) => {
        const distance = value == null ? Infinity : apart(u, index, here, value);
        if (distance < least) [best, least] = [here, distance];
      });
      return best;
    }
    for (let step = 0; step < values.length; step++) {
      if (values[at - step] != null) return at - step;
      if (values[at + step] != null) return at + step;
    }
    return at;
  }

  function decades(_, first, last) { // of a logarithmic axis: it ends at whole multiples of the power of ten below
    const low = first ?? 1, high = last ?? 10, [down, up] = [low, high].map(end => 10 ** Math.floor(Math.log10(end)));
    const ends = [down * Math.floor(low / down + 1e-9), up * Math.ceil(high / up - 1e-9)];
    return ends[0] < ends[1] ? ends : [low / 2, 2 * high];
  }

  function marks(_, __, low, high) { // of a logarithmic axis
    const [first, last] = [low, high].map(end => Math.floor(Math.log10(end) + 1e-9)), found = [];
    const many = last - first, step = Math.max(1, Math.ceil(many / 8)); // of many powers of ten only some
    for (let power = Math.ceil(first / step) * step; power <= last; power += step) {
      for (let digit = 1; digit < (many > 4 ? 2 : 10); digit++) found.push(+`${digit}e${power}`);
    }
    const inside = ticks => ticks.filter(tick => low * (1 - 1e-9) <= tick && tick <= high * (1 + 1e-9));
    if (inside(found).length > 2) return inside(found);
    const power = 10 ** Math.floor(Math.log10(high - low)); // the axis is too short for these
    const even = [0.1, 0.2, 0.5, 1].map(part => part * power).find(one => 6 * one >= high - low) ?? 2 * power;
    const from = Math.ceil(low / even - 1e-9);
    return inside(Array.from({ length: 8 }, (_, at) => +((from + at) * even).toPrecision(12)));
  }

  function across(end, log) { // the limits of the x axis: all of the run where its end is known, else what is zoomed to
    return (u, low, high) => {
      const xs = u.data[0], whole = low <= xs[0] && high >= xs.at(-1);
      if (whole && log) [low, high] = [xs[0], Math.max(end ?? 0, xs.at(-1))]; // uPlot gives one point three decades
      else if (whole && end != null) [low, high] = [Math.min(0, xs[0]), Math.max(end, xs.at(-1))];
      return u.view = log ? decades(u, low, high) : [low, high];
    };
  }

  function upright(log, percent) { // those of the y axis: of all in view, and of what lines lead to outside of it
    return (u, low, high) => {
      const xs = u.data[0], { view: [first, last] } = u, found = low == null ? [] : [low, high];
      for (const one of u.series.slice(1).filter(one => one.show && one.auto && one.scale === "y" && !one.scattered)) {
        const values = u.data[u.series.indexOf(one)];
        const before = values.findLast((value, at) => value != null && xs[at] < first);
        const after = values.find((value, at) => value != null && xs[at] > last);
        found.push(...[before, after].filter(value => value != null));
      }
      if (!found.length) return log ? decades(u) : [0, 1];
      [low, high] = [Math.min(...found), Math.max(...found)];
      if (log) return decades(u, low, high);
      const pad = low === high ? 0.03 * Math.abs(low) || 1 : 0;
      const limits = uPlot.rangeNum(low - pad, high + pad, 0.1, true);
      return percent ? [Math.max(0, limits[0]), Math.min(100, limits[1])] : limits;
    };
  }

  function written(_, ticks) { // those of a logarithmic axis that have a number
    const growth = ticks.at(-1) / ticks[0], kept = growth > 30 ? /^1/ : growth > 5 ? /^[125]/ : /./;
    return ticks.map(tick => kept.test(tick.toExponential()) ? tick : null);
  }

  const dashing = ({ dash }) => !dash?.length ? "solid" : dash[0] > 6 ? "dashed" : "dotted"; // in the words of CSS

  function plot(chart, box) {
    const axis = axisOf(chart), logX = isLog("x", chart), logY = isLog("y", chart), { ticks } = chart;
    const { series, table } = drawn(chart, axis, id("smoothing").value / 100, logX, logY);
    const names = series.some(one => one.names?.size), scattered = series.some(one => one.scattered);
    const key = names ? chart.title : axis; // of charts that zoom together
    const lines = { stroke: ink("--ink"), grid: { stroke: ink("--line"), width: 1 }, ticks: { show: false } };
    const font = "12px system-ui, sans-serif", words = ticks.map(tick => tick.split("\n")[0]);
    const letters = Math.max(0, ...words.map(word => word.length));
    const rotated = 7 * letters * ticks.length > box.clientWidth - 60; // the names have no room beside each other
    const places = u => u.view = [-0.5, ticks.length - 0.5];
    const numbered = (_, __, low, high) => ticks.map((_, at) => at).filter(at => low <= at && at <= high);
    const u = new uPlot({
      width: Math.max(200, box.clientWidth), height: 230, padding: [8, 20, 0, 0], series,
      cursor: {
        sync: names ? undefined : { key }, dataIdx: nearest, drag: { x: true, y: names },
        points: { size: 7, one: names }, focus: { prox: 24, dist: distance }
      },
      focus: { alpha: scattered ? 1 : 0.25 },
      legend: { markers: { width: 3, dash: (_, s) => dashing(series[s]) } },
      scales: {
        x: { time: false, distr: logX ? 3 : 1, range: ticks.length ? places : across(data.ends?.[axis], logX) },
        y: { distr: logY ? 3 : 1, range: upright(logY, chart.percent) }, edge: { range: [0, 1] }
      },
      axes: [
        {
          ...lines, font, space: 60, size: rotated ? 12 + 4 * letters : 26, rotate: rotated ? -35 : 0,
          splits: ticks.length ? numbered : logX ? marks : undefined, incrs: COUNTS.includes(axis) ? STEPS : undefined,
          filter: logX ? written : undefined,
          values: named((tick, step) => words[tick] ?? place(axis, tick, step))
        },
        {
          ...lines, font, size: 64, splits: logY ? marks : undefined, filter: logY ? written : undefined,
          values: named(short)
        }
      ],
      hooks: {
        setSeries: [(self, index, how) => {
          if (how.show === undefined) return self.focused = index;
          if (index === null) return;
          off[how.show ? "delete" : "add"](self.series[index].key);
          redraw();
        }],
        setCursor: [self => {
          if (!names) return;
          self.setLegend();
          const index = self.focused, at = index && self.cursor.idxs[index];
          pick(at == null ? null : self.series[index].names.get(self.data[0][at]) ?? null, self);
        }],
        setScale: [self => {
          if (!self.ready) return;
          const { x, y } = self.scales, [first, last] = [self.data[0][0], self.data[0].at(-1)];
          if (x.min <= first && x.max >= last) zoomed.delete(key);
          else zoomed.set(key, { x: { min: x.min, max: x.max }, ...names && { y: { min: y.min, max: y.max } } });
        }],
        ready: [self => self.ready = true]
      }
    }, table, box);
    for (const [scale, limits] of Object.entries(zoomed.get(key) ?? {})) u.setScale(scale, limits);
    u.root.setAttribute("role", "group");
    u.root.setAttribute("aria-label", `${chart.title} over ${axis}: curves and their values`);
    u.root.querySelectorAll(".u-series").forEach((row, s) => {
      const name = row.querySelector("th");
      if (!s || !series[s].label) return;
      for (const [key, value] of [["role", "button"], ["tabindex", "0"], ["aria-pressed", series[s].show]]) {
        name.setAttribute(key, value);
      }
      name.dataset.key = series[s].key;
      name.onkeydown = event => {
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        name.click();
      };
    });
    u.spots = new Map(series.flatMap((one, s) => [...one.names ?? []].map(([x, name]) => [name, [s, x]])));
    return u;
  }

  function pick(name, from = null) { // marks it in the other charts and in the page
    if (name === picked) return;
    picked = name;
    for (const one of all("[data-name]")) one.classList.toggle("on", one.dataset.name === name);
    for (const u of plots) {
      if (u === from || !u.spots.size) continue;
      const [s, x] = u.spots.get(name) ?? [null], y = s && u.data[s][u.valToIdx(x)], one = s && u.series[s];
      const [left, top] = one?.scattered && y != null ? [u.valToPos(x, "x"), u.valToPos(y, one.scale)] : [-10, -10];
      u.setCursor({ left, top }, false);
      if (one && !one.scattered) u.setSeries(u.focused = s, { focus: true }, false);
    }
    const row = all("tr.on").at(-1), heads = row ? [...row.closest("table").tHead.rows[0].cells] : [];
    const words = heads.map((head, at) => [head.textContent, row.cells[at].textContent]).filter(([, text]) => text);
    if (id("picked")) id("picked").textContent = words.map(pair => pair.join(" ")).join(", ");
  }
  for (const kind of ["pointerover", "focusin"]) document.addEventListener(kind, event => {
    if (!event.target.closest(".uplot, #picked")) pick(event.target.closest("[data-name]")?.dataset.name ?? null);
  });

  function element(name, parent, words = "") {
    const made = document.createElement(name);
    made.textContent = words;
    parent.append(made);
    return made;
  }

  function redraw() {
    const focused = document.activeElement?.dataset.key;
    for (const one of plots) one.destroy();
    plots = [];
    id("controls").hidden = !data.charts.length;
    id("smoothing").parentNode.hidden = !data.charts.some(chart => chart.curves.some(curve => curve.look === "smooth"));
    const homes = ["first", "more"].map(id), boxes = [];
    for (const home of [...homes, id("axes")]) home?.replaceChildren();
    const choices = new Set(data.charts.map(chart => chart.axes).filter(axes => axes.length > 1).map(String));
    const one = choices.size === 1; // for all charts
    data.charts.forEach((chart, at) => {
      const figure = element("figure", homes[at < 2 || !homes[1] ? 0 : 1]), head = element("div", figure);
      figure.setAttribute("aria-label", chart.title);
      head.className = "head";
      element("h3", head, chart.title);
      const scales = element("span", head);
      if (choices.delete(String(chart.axes))) {
        const select = element("select", element("label", one ? id("axes") : scales, "over "));
        for (const axis of chart.axes) element("option", select, axis);
        select.value = axisOf(chart);
        select.dataset.key = chart.axes;
        select.onchange = () => { chosen.set(String(chart.axes), select.value); fresh(); };
      }
      scales.append(chart.mayBe && " logarithmic");
      for (const which of chart.mayBe) {
        const label = element("label", scales), box = element("input", label);
        label.append(which);
        box.type = "checkbox";
        box.setAttribute("aria-label", `${chart.title}: logarithmic ${which} axis`);
        box.dataset.key = `${which}/${chart.title}`;
        box.checked = isLog(which, chart);
        box.onchange = () => { logarithmic.set(scaleKey(which, chart), box.checked); fresh(); };
      }
      boxes.push([chart, element("div", figure)]);
      element("figcaption", figure, chart.caption);
    });
    plots = boxes.map(([chart, box]) => plot(chart, box)); // when all have their places, and so their widths
    if (focused) all("[data-key]").find(one => one.dataset.key === focused)?.focus({ preventScroll: true });
  }

  const fresh = () => { zoomed.clear(); redraw(); };
  id("reset").onclick = fresh;
  id("smoothing").value = kept.smoothing ?? id("smoothing").value;
  id("smoothing").oninput = redraw;
  for (const fold of all("details.numbers")) fold.open = false;
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  let width = innerWidth;
  addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; redraw(); } });
  redraw();

  const scrolls = () => ({ top: scrollY, boxes: all(".scroll").map(box => box.scrollLeft) });
  function scrollAs({ top, boxes }) {
    all(".scroll").forEach((box, at) => box.scrollLeft = boxes[at]);
    scrollTo(0, top);
  }
  function reload() {
    const choices = { zoomed: [...zoomed], logarithmic: [...logarithmic], chosen: [...chosen], off: [...off] };
    const rest = { smoothing: id("smoothing").value, scrolls: scrolls() };
    sessionStorage.setItem(location.pathname, JSON.stringify({ ...choices, ...rest }));
    location.reload();
  }
  if (kept.scrolls) scrollAs(kept.scrolls);

  function take(old, made) { // what another page has in place of this element; open folds and the focus stay
    const held = old?.contains(document.activeElement) && document.activeElement.closest("details");
    const folds = new Map([...old?.querySelectorAll("details") ?? []].map(fold => [wordsOf(fold), fold.open]));
    for (const fold of made?.querySelectorAll("details") ?? []) fold.open = folds.get(wordsOf(fold)) ?? false;
    if (!old || made && old.isEqualNode(made)) return;
    old.replaceChildren(...made?.childNodes ?? []);
    const fold = held && [...old.querySelectorAll("details")].find(one => wordsOf(one) === wordsOf(held));
    if (fold) fold.querySelector("summary").focus({ preventScroll: true });
  }
  const wordsOf = fold => fold.querySelector("summary").textContent;

  async function refresh() {
    if (document.hidden || String(getSelection())) return again();
    if (location.protocol === "file:") return reload();
    let next, why = "The server of this page does not answer";
    try {
      const answer = await fetch(location.href);
      next = new DOMParser().parseFromString(await answer.text(), "text/html");
      why = next.querySelector("p")?.textContent || `The server answers ${answer.status}`; // in place of the charts
    } catch {} // of the server: it has ended
    if (!next?.getElementById("curves")) {
      id("state").textContent = `${why}; what you see may be old.`;
      return setTimeout(refresh, 3000);
    }
    const before = scrolls(), text = next.getElementById("curves").textContent, seen = picked;
    for (const name of ["state", "now", "tiles", "numbers", "details"]) take(id(name), next.getElementById(name));
    if (text !== id("curves").textContent) {
      id("curves").textContent = text;
      data = JSON.parse(text);
      redraw();
    }
    picked = null;
    pick(seen);
    scrollAs(before);
    if (next.body.dataset.live === undefined) return reload(); // it has ended: all of the page, once
    document.body.dataset.live = next.body.dataset.live;
    again();
  }
  function again() {
    if (document.body.dataset.live !== undefined) setTimeout(refresh, 1000 * document.body.dataset.live);
  }
  again();
})();
