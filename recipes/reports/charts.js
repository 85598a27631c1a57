// Draws the curves of a report: hover, zoom, smoothing, logarithmic axes, and a choice of the x axis. Texts of a run
// reach the page as text only. With data-live on the body, the page asks for itself anew and takes over what changed.
"use strict";
(() => {
  const id = name => document.getElementById(name);
  const ink = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const zoomed = { min: null, max: null }; // of the x axis, on all charts
  const off = new Set(), logarithmic = new Map(); // hidden curves, "chart/curve"; charts whose box was clicked
  let data = JSON.parse(id("curves").textContent), plots = [];

  const short = value => value == null ? "–" : String(+value.toPrecision(4));
  function clock(seconds) {
    const two = part => String(Math.floor(part)).padStart(2, "0");
    if (seconds < 60) return `${+seconds.toFixed(1)} s`;
    return seconds < 3600 ? `${Math.floor(seconds / 60)}:${two(seconds % 60)} min`
      : `${Math.floor(seconds / 3600)}:${two(seconds / 60 % 60)} h`;
  }
  const place = (axis, value) => value == null ? "–" : axis === "time" ? clock(value)
    : axis === "epochs" ? short(value) : Math.round(value).toLocaleString("en");

  const named = words => (_, ticks) => ticks.map(tick => tick == null ? "" : words(tick)); // log axes have empty ones
  const height = value => value >= 1e4 ? value.toLocaleString("en") : short(value);

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
    const tables = [], series = [{ label: axis, value: (_, value) => place(axis, value) }], below = [];
    const add = (x, y, look) => {
      const kept = x.map((_, at) => at).filter(at => !logX || x[at] > 0);
      tables.push([kept.map(at => x[at]), kept.map(at => logY && !(y[at] > 0) ? null : y[at])]);
      series.push({ spanGaps: true, width: 2, points: { show: false }, ...look });
    };
    const curves = chart.curves.map((curve, at) => ({ ...curve, key: `${chart.title}/${at}` }));
    if (chart.stacked) {
      for (const curve of curves) {
        const hidden = off.has(curve.key);
        curve.top = curve.values.map((value, at) => (below.at(-1)?.[at] ?? 0) + (hidden ? 0 : value ?? 0));
        below.push(curve.top);
      }
      curves.reverse(); // the highest first, the lower ones over it
    }
    curves.forEach((curve, at) => {
      const x = data.runs[curve.run][curve.at][axis] ?? [], stroke = ink(`--k${curve.colour.slice(1)}`);
      const wide = data.runs.length > 1 ? 1.5 + 1.5 * Math.min(3, curves.length - 1 - at) : 2; // seen below others
      const show = !off.has(curve.key), { label, key, dashes: dash } = curve;
      const one = { label, stroke, show, dash, key, width: wide };
      if (chart.stacked) {
        const back = new Map(x.map((value, i) => [value, curve.values[i]]));
        const value = (u, _, s, i) => short(back.get(u.data[0][i]));
        return add(x, curve.top, { ...one, fill: stroke, width: 0, value });
      }
      if (curve.look === "smooth") {
        add(x, curve.values, { stroke, show, width: 1, alpha: 0.3, class: "raw", key: curve.key, label: "" });
        const raw = tables.length;
        return add(x, mean(curve.values, share), {
          ...one,
          value: (u, value, _, i) => value == null ? "–" : `${short(value)} (${short(u.data[raw][i])})`
        });
      }
      
      if (curve.look === "step") return add(x, curve.values, { ...one, paths: uPlot.paths.stepped({ align: 1 }) });
      const dots = curve.look === "dots" && curve.values.length <= 60;
      add(x, curve.values, { ...one, points: { show: dots, size: 5, fill: stroke } });
    });
    return { series, table: tables.length === 1 ? tables[0] : uPlot.join(tables) };
  }

  function nearest(u, index, at) { // the nearest point that this curve has
    const values = u.data[index];
    for (let step = 0; step < values.length; step++) {
      if (values[at - step] != null) return at - step;
      if (values[at + step] != null) return at + step;
    }
    return at;
  }

  function plot(chart, box) {
    const axis = id("axis").value, logX = id("log-x").checked, logY = logarithmic.get(chart.title) ?? chart.logarithmic;
    const { series, table } = drawn(chart, axis, id("smoothing").value / 100, logX, logY && !chart.stacked);
    const lines = { stroke: ink("--ink"), grid: { stroke: ink("--line"), width: 1 }, ticks: { show: false } };
    const font = "12px system-ui, sans-serif";
    const u = new uPlot({
      width: Math.max(200, box.clientWidth), height: 230, padding: [8, 12, 0, 0], series,
      cursor: { sync: { key: "x" }, dataIdx: nearest, focus: { prox: 24 }, points: { size: 7 } },
      focus: { alpha: 0.25 },
      legend: { markers: { width: 3 } },
      scales: { x: { time: false, distr: logX ? 3 : 1 }, y: { distr: logY && !chart.stacked ? 3 : 1 } },
      axes: [
        { ...lines, font, space: 60, size: 26, values: named(tick => place(axis, tick)) },
        { ...lines, font, size: 56, values: named(height) }
      ],
      hooks: {
        setSeries: [(self, index, how) => {
          if (how.show === undefined || index === null) return;
          const { key } = self.series[index];
          off[how.show ? "delete" : "add"](key);
          if (chart.stacked) return redraw();
          self.series.forEach((one, at) => {
            if (one.key === key && one.show !== how.show) self.setSeries(at, { show: how.show });
          });
        }],
        setScale: [(self, key) => {
          if (key !== "x" || !self.ready) return;
          const [first, last] = [self.data[0][0], self.data[0].at(-1)], { min, max } = self.scales.x;
          Object.assign(zoomed, min <= first && max >= last ? { min: null, max: null } : { min, max });
        }],
        ready: [self => self.ready = true]
      }
    }, table, box);
    if (zoomed.min !== null) u.setScale("x", zoomed);
    return u;
  }

  function element(name, parent, words = "") {
    const made = document.createElement(name);
    made.textContent = words;
    parent.append(made);
    return made;
  }

  function redraw() {
    for (const one of plots) one.destroy();
    plots = [];
    id("controls").hidden = !data.charts.length;
    const homes = ["first", "more"].map(id), boxes = [];
    for (const home of homes) home?.replaceChildren();
    data.charts.forEach((chart, at) => {
      const figure = element("figure", homes[at < 2 || !homes[1] ? 0 : 1]), head = element("div", figure);
      head.className = "head";
      element("h3", head, chart.title);
      if (!chart.stacked) {
        const label = element("label", head), box = element("input", label);
        label.append(" logarithmic");
        box.type = "checkbox";
        box.checked = logarithmic.get(chart.title) ?? chart.logarithmic;
        box.onchange = () => { logarithmic.set(chart.title, box.checked); redraw(); };
      }
      boxes.push([chart, element("div", figure)]);
      element("figcaption", figure, chart.caption);
    });
    plots = boxes.map(([chart, box]) => plot(chart, box)); // when all have their places, and so their widths
  }

  const fresh = () => { Object.assign(zoomed, { min: null, max: null }); redraw(); };
  id("axis").onchange = id("log-x").onchange = id("reset").onclick = fresh;
  id("smoothing").oninput = redraw;
  for (const fold of document.querySelectorAll("details.numbers")) fold.open = false;
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  let width = innerWidth;
  addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; redraw(); } });
  redraw();

  async function refresh() {
    let next;
    try {
      const answer = await fetch(location.href);
      if (!answer.ok) throw new Error(answer.status);
      next = new DOMParser().parseFromString(await answer.text(), "text/html");
    } catch {
      id("state").textContent = "The server of this page does not answer; what you see may be old.";
      return setTimeout(refresh, 3000);
    }
    for (const name of ["state", "now", "tiles"]) {
      if (id(name)) id(name).replaceChildren(...next.getElementById(name)?.childNodes ?? []);
    }
    const text = next.getElementById("curves").textContent;
    if (text !== id("curves").textContent) {
      id("curves").textContent = text;
      data = JSON.parse(text);
      const top = scrollY;
      redraw();
      scrollTo(0, top);
    }
    if (next.body.dataset.live !== undefined) setTimeout(refresh, 1000 * next.body.dataset.live);
    else if (document.body.dataset.live !== undefined) location.reload(); // it has ended: all of the page, once
  }
  if (document.body.dataset.live !== undefined) setTimeout(refresh, 1000 * document.body.dataset.live);
})();
