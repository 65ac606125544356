// The page of a job that runs: figures move by themselves, curves can be hovered and zoomed. It is complete without this file.
"use strict";

(() => {
  const FIRST_MS = 3000;
  const SLOWEST_MS = 30000;
  const COLORS = ["--link", "--mid", "--framework", "--low"];
  const MARKS = { checkpoint: "--high", alert: "--infrastructure", relaunch: "--faint" };
  const SYNC = uPlot.sync("run");
  const box = document.getElementById("curves");
  const happened = Object.assign(document.createElement("p"), { className: "happened faint" });
  let plots = [];
  let marks = [];
  let known = "";

  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const shown = (value) => (value === null || value === undefined ? "" : Number(value.toPrecision(5)).toLocaleString());

  // Lines at the steps where something happened; the nearest one to the pointer is told in words.
  const happenings = {
    draw: (plot) => {
      const context = plot.ctx;
      context.save();
      for (const mark of marks) {
        if (mark.step < plot.scales.x.min || mark.step > plot.scales.x.max) continue;
        const x = Math.round(plot.valToPos(mark.step, "x", true));
        context.strokeStyle = color(MARKS[mark.kind]);
        context.setLineDash(mark.kind === "checkpoint" ? [2, 4] : []);
        context.beginPath();
        context.moveTo(x, plot.bbox.top);
        context.lineTo(x, plot.bbox.top + plot.bbox.height);
        context.stroke();
      }
      context.restore();
    },
    setCursor: (plot) => {
      const left = plot.cursor.left;
      const near = (mark) => Math.abs(plot.valToPos(mark.step, "x") - left);
      const closest = marks.filter((mark) => near(mark) < 8).sort((one, other) => near(one) - near(other))[0];
      if (left >= 0) happened.textContent = closest ? `Step ${closest.step.toLocaleString()}: ${closest.text}` : "";
    },
  };

  function options(chart, isByStep) {
    const values = chart.runs[0].y.filter((value) => value !== null);
    const isWide = Math.min(...values) > 0 && Math.max(...values) / Math.min(...values) > 50;
    const rem = parseFloat(getComputedStyle(document.documentElement).fontSize);
    const axis = { font: `${0.75 * rem}px system-ui, sans-serif`, stroke: color("--faint"), grid: { stroke: color("--edge"), width: 1 }, ticks: { stroke: color("--edge") } };
    const line = (run, place) => ({
      label: run.run,
      stroke: color(run.url ? COLORS[1 + (place % 3)] : COLORS[0]),
      width: run.url ? 1 : 2,
      spanGaps: true,
      points: { show: run.x.length < 3 },
      value: (plot, value) => shown(value),
    });
    return {
      width: Math.max(240, box.clientWidth - 36),
      height: 190,
      scales: { x: { time: false }, y: { distr: isWide ? 3 : 1 } },
      axes: [axis, { ...axis, size: 64, values: (plot, ticks) => ticks.map(shown) }],
      cursor: { sync: { key: SYNC.key, setSeries: false }, drag: { x: true, y: false } },
      series: [{ label: chart.over, value: (plot, value) => shown(value) }, ...chart.runs.map(line)],
      hooks: isByStep ? { draw: [happenings.draw], setCursor: [happenings.setCursor] } : {},
    };
  }

  const rows = (chart) => uPlot.join(chart.runs.map((run) => [run.x, run.y]));

  function zoom(share) {
    for (const plot of plots) {
      const x = plot.data[0];
      const last = x[x.length - 1];
      plot.setScale("x", { min: last - (last - x[0]) * share, max: last });
    }
  }

  function draw(charts) {
    const heading = box.querySelector("h2");
    const range = Object.assign(document.createElement("p"), { className: "range" });
    for (const [name, share] of [["All steps", 1], ["Last quarter", 0.25], ["Last 5 %", 0.05]]) {
      const button = Object.assign(document.createElement("button"), { type: "button", textContent: name });
      button.onclick = () => zoom(share);
      range.append(button);
    }
    range.append("Drag in a chart to zoom; double-click shows all.");
    box.replaceChildren(heading, range, happened);
    plots = charts.map((chart) => {
      const title = document.createElement("h3");
      title.textContent = chart.name;
      const place = document.createElement("div");
      place.setAttribute("role", "img");
      place.setAttribute("aria-label", `${chart.name} over ${chart.over}; the newest steps are in the table below`);
      box.append(title, place);
      return new uPlot(options(chart, chart.over === "step"), rows(chart), place);
    });
  }

  // New points keep the zoom that somebody chose.
  function update(charts) {
    charts.forEach((chart, place) => {
      const { min, max } = plots[place].scales.x;
      const x = plots[place].data[0];
      const isWhole = min <= x[0] && max >= x[x.length - 1];
      plots[place].setData(rows(chart), isWhole);
      if (!isWhole) plots[place].redraw();
    });
  }

  async function loadCurves() {
    const answer = await fetch(box.dataset.series);
    if (!answer.ok) return false;
    const text = await answer.text();
    if (text === known) return false;
    const before = known && JSON.parse(known).charts;
    known = text;
    const data = JSON.parse(text);
    marks = data.marks;
    if (!data.charts.length) return false;
    const shape = (charts) => charts.map((chart) => [chart.name, ...chart.runs.map((run) => run.run)].join()).join("|");
    if (plots.length && before && shape(before) === shape(data.charts)) update(data.charts);
    else draw(data.charts);
    return true;
  }

  const isInUse = (part) => part.contains(document.activeElement) || part.querySelector("details[open]");

  // "3 s ago" is no news.
  function words(part) {
    const copy = part.cloneNode(true);
    for (const time of copy.querySelectorAll("time")) time.remove();
    return copy.textContent;
  }

  async function loadFigures() {
    const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
    if (!answer.ok) return false;
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (!page.getElementById("run")) return location.reload(); // it has ended
    let isMoved = false;
    for (const part of document.querySelectorAll("[data-moves]")) {
      const fresh = page.getElementById(part.id);
      if (!fresh || isInUse(part)) continue;
      tellLocalTimes(fresh);
      isMoved = isMoved || words(fresh) !== words(part);
      part.replaceWith(fresh);
    }
    return isMoved;
  }

  // Where nothing moves, the next look comes later; a page in the background asks for nothing.
  function follow(pause) {
    setTimeout(async () => {
      if (document.hidden) return follow(pause);
      const moves = await Promise.all([loadFigures(), loadCurves()].map((load) => load.catch(() => false)));
      follow(moves.some(Boolean) ? FIRST_MS : Math.min(pause * 1.5, SLOWEST_MS));
    }, pause);
  }

  loadCurves().catch(() => {});
  if (document.getElementById("run")) follow(FIRST_MS);
  let resizing = 0;
  addEventListener("resize", () => {
    clearTimeout(resizing);
    resizing = setTimeout(() => plots.forEach((plot) => plot.setSize({ width: Math.max(240, box.clientWidth - 36), height: 190 })), 200);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => known && draw(JSON.parse(known).charts));
})();
