// Where the time went, and what tokens and the judge cost.

const PHASES = [["rollout", 1], ["train", 2], ["sync", 3], ["evaluation", 4], ["other", 6]];

function drawTime(view, data, trajectories) {
  const times = phaseTimes(data.curves);
  view.append(h("div", { class: "bar" }, h("h2", null, "Time and cost")));
  if (times === null) view.append(h("p", { class: "muted" }, "Times of phases are not recorded: this run has no logger that the report can read."));
  else view.append(h("div", { class: "two" }, phaseChart(times), phaseTable(times, data.processes)));
  view.append(h("div", { class: "two" }, episodeTable(trajectories, data.curves), tokenTable(trajectories, data.curves)));
}

// Seconds of each phase by step; "other" is what is left of the iteration: pool, records.
function phaseTimes(curves) {
  const whole = curves["time/iteration_s"];
  if (whole === undefined) return null;
  const of = (name, step) => {
    const place = curves[`time/${name}_s`]?.steps.indexOf(step) ?? -1;
    return place < 0 ? 0 : curves[`time/${name}_s`].values[place];
  };
  return whole.steps.map((step, n) => {
    const known = { rollout: of("rollout", step), train: of("train", step), sync: of("sync", step), evaluation: of("evaluation", step) };
    const other = whole.values[n] - sum(Object.values(known));
    return { step, ...known, other: Math.max(0, other), whole: whole.values[n] };
  });
}

function phasesOf(times) {
  return PHASES.filter(([name]) => name !== "evaluation" || times.some((one) => one.evaluation > 0));
}

function phaseChart(times) {
  const plot = h("div", { class: "plot" });
  const legend = h("div", { class: "legend", "aria-live": "polite" });
  const describe = (one) => legend.replaceChildren(...phasesOf(times).map(([name, color]) => h("span", { class: "key" },
    svg("svg", { width: 12, height: 12, "aria-hidden": true }, svg("rect", { width: 12, height: 12, rx: 2, class: `fill c${color}` })),
    h("span", { class: "name" }, name), one === null ? null : h("b", null, duration(one[name])))),
  h("span", { class: "at" }, one === null ? "" : `step ${one.step}`));
  describe(null);
  onWidth(plot, (width) => plot.replaceChildren(phaseBars(times, width, describe)));
  return h("figure", { class: "card chart" }, h("figcaption", null, h("h3", null, "Seconds an iteration")), legend, plot);
}

function phaseBars(times, width, describe) {
  const height = 220;
  const most = Math.max(...times.map((one) => one.whole), 1e-9);
  const size = (width - MARGIN.left - MARGIN.right) / times.length;
  const y = (seconds) => height - MARGIN.bottom - (seconds / most) * (height - MARGIN.top - MARGIN.bottom);
  const root = svg("svg", { width, height, role: "img", "aria-label": "Seconds by phase and step; the table has the sums" });
  for (const value of ticks(0, most, 4)) {
    root.append(svg("path", { d: `M${MARGIN.left},${y(value)}H${width - MARGIN.right}`, class: "grid" }),
      svg("text", { x: MARGIN.left - 6, y: y(value) + 3.5, class: "tick end" }, number(value)));
  }
  times.forEach((one, n) => {
    const bar = svg("g", { onpointerenter: () => describe(one), onpointerleave: () => describe(null) });
    let base = 0;
    for (const [name, color] of PHASES) {
      const top = base + one[name];
      bar.append(svg("rect", {
        x: MARGIN.left + n * size, y: y(top), width: Math.max(0.5, size - (size > 4 ? 1 : 0)), height: Math.max(0, y(base) - y(top)), class: `fill c${color}`,
      }));
      base = top;
    }
    root.append(bar);
  });
  const every = Math.ceil(50 / size);
  times.forEach((one, n) => {
    if (n === 0 || (n + 1) % every === 0) root.append(svg("text", { x: MARGIN.left + (n + 0.5) * size, y: height - 5, class: "tick middle" }, one.step));
  });
  return root;
}

function median(values) {
  const ordered = [...values].sort((a, b) => a - b);
  return ordered.length === 0 ? null : ordered[Math.floor((ordered.length - 1) / 2)];
}

function sum(values) {
  return values.reduce((total, value) => total + value, 0);
}

function phaseTable(times, processes) {
  const total = sum(times.map((one) => one.whole));
  const rows = [...phasesOf(times).map(([name]) => name), "whole"].map((name) => {
    const own = times.map((one) => one[name]);
    return [name === "whole" ? "all" : name, duration(sum(own)), percent(sum(own) / total), duration(median(own))];
  });
  const note = processes > 1 ? `${processes} training processes: ${number((total * processes) / 3600)} process-hours.` : "One training process.";
  return numbersCard("Iterations", ["phase", "sum", "share", "median"], rows,
    `Other is what is left of an iteration, such as updates of the pool. ${note}`);
}

function episodeTable(trajectories, curves) {
  const rows = Object.entries(curves).filter(([name]) => name.startsWith("time/episode_")).map(([name, points]) =>
    [words(name.slice("time/episode_".length, -2)), duration(sum(points.values) / points.values.length), duration(points.values.at(-1))]);
  const graded = trajectories.seconds.filter((_, i) => !trajectories.isLost(i));
  rows.push(["whole episode", duration(sum(graded) / Math.max(1, graded.length)), "–"]);
  return numbersCard("Episodes", ["phase", "mean", "last step"], rows, "Seconds of one episode; episodes run at the same time.");
}

function tokenTable(trajectories, curves) {
  const total = (name) => (curves[name] === undefined ? null : sum(curves[name].values));
  const graded = trajectories.tokens.filter((_, i) => !trajectories.isLost(i));
  const rows = [
    ["generated tokens", bytes(sum(graded))],
    ["generated tokens, median trajectory", count(median(graded) ?? 0)],
  ];
  for (const group of ["judge", "reflection"]) {
    for (const [name, text] of [["calls", "calls"], ["prompt_tokens", "prompt tokens"], ["completion_tokens", "completion tokens"], ["cost", "cost"]]) {
      const value = total(`${group}/${name}`);
      if (value !== null) rows.push([`${group} ${text}`, name === "cost" ? number(value) : bytes(value)]);
    }
  }
  return numbersCard("Tokens and calls", ["", "sum"], rows, "A cost is there if prices are configured (judge.prices).");
}

function numbersCard(title, names, rows, note) {
  return h("div", { class: "card" }, h("h3", null, title),
    h("table", { class: "numbers" },
      h("thead", null, h("tr", null, names.map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", null, rows.map(([first, ...rest]) => h("tr", null, h("th", { scope: "row" }, first), rest.map((text) => h("td", null, text)))))),
    note ? h("p", { class: "muted caption" }, note) : null);
}
