// Line charts over the steps of a run.

const MARGIN = { left: 46, right: 10, top: 8, bottom: 22 };
const CHART_HEIGHT = 168;
const FEW_POINTS = 40;
const SMOOTHING = 0.8;

function ticks(low, high, most) {
  const raw = (high - low) / most || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  const unit = [1, 2, 2.5, 5, 10].find((factor) => factor * power >= raw * 0.999) * power;
  const found = [];
  for (let n = Math.ceil(low / unit - 1e-9); n * unit <= high + 1e-9 * unit; n += 1) {
    found.push(Number((n * unit).toPrecision(12)));
  }
  return found;
}

// The range up to the next tick, but not beyond what is fixed.
function widened(bottom, top, low, high) {
  const found = ticks(bottom, top, 4);
  const unit = found.length > 1 ? found[1] - found[0] : top - bottom;
  return [low ?? Math.floor(bottom / unit + 1e-9) * unit, high ?? Math.ceil(top / unit - 1e-9) * unit];
}

function tickText(value, format) {
  return format === percent ? `${Number((100 * value).toPrecision(4))} %` : number(value);
}

// Mean of what came before, weighted by nearness and corrected for the start.
function smoothed(values) {
  let sum = 0;
  let weight = 0;
  return values.map((value) => {
    sum = SMOOTHING * sum + (1 - SMOOTHING) * value;
    weight = SMOOTHING * weight + (1 - SMOOTHING);
    return sum / weight;
  });
}

function linePath(steps, values, x, y, isStepped) {
  return steps.map((step, n) => {
    const [a, b] = [x(step).toFixed(1), y(values[n]).toFixed(1)];
    if (n === 0) return `M${a},${b}`;
    return isStepped ? `H${a}V${b}` : `L${a},${b}`;
  }).join("");
}

// series: [{name, steps, values, shape: "line" | "steps" | "points", color: 1 to 6}]
function lineChart({ title, note, series, format = number, low, high, isSmooth }) {
  const shown = series.filter((one) => one.steps.length > 0);
  if (shown.length === 0) return null;
  const legend = h("div", { class: "legend", "aria-live": "polite" });
  const plot = h("div", { class: "plot" });
  const figure = h("figure", { class: "card chart" },
    h("figcaption", null, h("h3", null, title), note ? h("p", { class: "muted" }, note) : null),
    legend, plot);
  const steps = [...new Set(shown.flatMap((one) => one.steps))].sort((a, b) => a - b);
  const describe = (step) => {
    legend.replaceChildren(...shown.map((one) => {
      const place = step === null ? one.steps.length - 1 : one.steps.indexOf(step);
      return h("span", { class: "key" }, swatch(one),
        shown.length > 1 || one.shape === "points" ? h("span", { class: "name" }, one.name) : null,
        h("b", null, place < 0 ? "–" : format(one.values[place])));
    }), h("span", { class: "at" }, step === null ? "" : `step ${step}`));
  };
  describe(null);
  onWidth(plot, (width) => {
    plot.replaceChildren(drawLines({ title, shown, steps, format, low, high, isSmooth, width, describe }));
  });
  return figure;
}

function swatch(one) {
  const mark = one.shape === "points"
    ? svg("circle", { cx: 7, cy: 5, r: 3.5, class: `dot c${one.color}` })
    : svg("path", { d: "M0,5H14", class: `line c${one.color}` });
  return svg("svg", { width: 14, height: 10, "aria-hidden": true }, mark);
}

function drawLines({ title, shown, steps, format, low, high, isSmooth, width, describe }) {
  const values = shown.flatMap((one) => one.values);
  let bottom = low ?? Math.min(...values);
  let top = high ?? Math.max(...values);
  if (bottom === top) [bottom, top] = [bottom - (Math.abs(bottom) || 1) / 2, top + (Math.abs(top) || 1) / 2];
  [bottom, top] = widened(bottom, top, low, high);
  const [first, last] = [steps[0], Math.max(steps.at(-1), steps[0] + 1)];
  const x = (step) => MARGIN.left + ((step - first) / (last - first)) * (width - MARGIN.left - MARGIN.right);
  const y = (value) => CHART_HEIGHT - MARGIN.bottom
    - ((value - bottom) / (top - bottom)) * (CHART_HEIGHT - MARGIN.top - MARGIN.bottom);
  const root = svg("svg", {
    width, height: CHART_HEIGHT, tabindex: 0, role: "img",
    "aria-label": `${title}: ` + shown.map((one) =>
      `${one.name} from ${format(one.values[0])} to ${format(one.values.at(-1))}`).join("; "),
  });
  for (const value of ticks(bottom, top, 4)) {
    root.append(
      svg("path", { d: `M${MARGIN.left},${y(value)}H${width - MARGIN.right}`, class: "grid" }),
      svg("text", { x: MARGIN.left - 6, y: y(value) + 3.5, class: "tick end" }, tickText(value, format)));
  }
  for (const step of ticks(first, last, Math.max(2, width / 80)).filter(Number.isInteger)) {
    root.append(svg("text", { x: x(step), y: CHART_HEIGHT - 5, class: "tick middle" }, step));
  }
  for (const one of shown) root.append(...drawSeries(one, x, y, isSmooth));
  addCrosshair(root, steps, x, describe);
  return root;
}

function drawSeries(one, x, y, isSmooth) {
  const color = `c${one.color}`;
  const dots = () => one.steps.map((step, n) =>
    svg("circle", { cx: x(step), cy: y(one.values[n]), r: one.shape === "points" ? 3.5 : 1.6, class: `dot ${color}` }));
  if (one.shape === "points") {
    return [svg("path", { d: linePath(one.steps, one.values, x, y, false), class: `line dashed ${color}` }), ...dots()];
  }
  const raw = linePath(one.steps, one.values, x, y, one.shape === "steps");
  if (isSmooth && one.shape !== "steps" && one.steps.length > 4) {
    return [
      svg("path", { d: raw, class: `line faint ${color}` }),
      svg("path", { d: linePath(one.steps, smoothed(one.values), x, y, false), class: `line ${color}` }),
    ];
  }
  return [svg("path", { d: raw, class: `line ${color}` }), ...(one.steps.length <= FEW_POINTS ? dots() : [])];
}

// A vertical line at one step, moved by the pointer or the arrow keys.
function addCrosshair(root, steps, x, describe) {
  const line = svg("path", { class: "crosshair", d: "" });
  root.append(line);
  let current = null;
  const show = (place) => {
    current = place;
    line.setAttribute("d", place === null ? "" : `M${x(steps[place])},${MARGIN.top}V${CHART_HEIGHT - MARGIN.bottom}`);
    describe(place === null ? null : steps[place]);
  };
  root.addEventListener("pointermove", (event) => {
    const at = event.clientX - root.getBoundingClientRect().left;
    let nearest = 0;
    steps.forEach((step, n) => {
      if (Math.abs(x(step) - at) < Math.abs(x(steps[nearest]) - at)) nearest = n;
    });
    show(nearest);
  });
  root.addEventListener("pointerleave", () => show(null));
  root.addEventListener("blur", () => show(null));
  root.addEventListener("keydown", (event) => {
    const from = current ?? steps.length - 1;
    const to = {
      ArrowLeft: from - 1, ArrowRight: from + 1, Home: 0, End: steps.length - 1,
    }[event.key];
    if (event.key === "Escape") show(null);
    if (to === undefined) return;
    event.preventDefault();
    show(Math.min(steps.length - 1, Math.max(0, to)));
  });
}
