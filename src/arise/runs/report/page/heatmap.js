// A grid of coloured cells with one cursor, moved by the pointer or the arrow keys.

const LEVELS = 6;
const ROW_HEIGHT = 22;
const LABEL_WIDTH = 168;

// rows: names; columns: steps; value(row, column) in [0, 1] or null; tell(row, column): nodes
function heatmap({ title, rows, columns, value, tell, activate }) {
  const readout = h("p", { class: "readout", "aria-live": "polite" }, "Move over the map, or focus it and use the arrow keys.");
  const frame = h("div", { class: "heat-frame" });
  onWidth(frame, (width) => frame.replaceChildren(
    drawHeat({ title, rows, columns, value, tell, activate, readout, width })));
  return h("div", { class: "card" }, frame, readout);
}

function drawHeat({ title, rows, columns, value, tell, activate, readout, width }) {
  const labels = Math.min(LABEL_WIDTH, width * 0.35);
  const size = Math.min(28, Math.max(5, Math.floor((width - labels - 2) / columns.length)));
  const height = rows.length * ROW_HEIGHT + 20;
  const root = svg("svg", {
    width: labels + size * columns.length + 2, height, tabindex: 0, role: "application",
    "aria-label": `${title}: ${rows.length} rows, ${columns.length} steps. Arrow keys move, Enter opens.`,
  });
  const cells = svg("g");
  rows.forEach((name, r) => {
    const text = name.length > 26 ? `${name.slice(0, 25)}…` : name;
    root.append(svg("text", { x: labels - 8, y: r * ROW_HEIGHT + 15, class: "row-label end" }, svg("title", null, name), text));
    columns.forEach((_, c) => {
      const level = value(r, c);
      const name_ = level === null ? "none" : `q${Math.min(LEVELS - 1, Math.floor(level * LEVELS))}`;
      cells.append(svg("rect", {
        x: labels + c * size, y: r * ROW_HEIGHT + 1, width: size - 1, height: ROW_HEIGHT - 2, class: `cell ${name_}`,
      }));
    });
  });
  root.append(cells);
  const every = Math.ceil(32 / size);
  columns.forEach((step, c) => {
    if ((c + 1) % every === 0 || c === 0) {
      root.append(svg("text", { x: labels + (c + 0.5) * size, y: height - 5, class: "tick middle" }, step));
    }
  });
  addCursor({ root, rows, columns, labels, size, tell, activate, readout });
  return root;
}

function addCursor({ root, rows, columns, labels, size, tell, activate, readout }) {
  const mark = svg("rect", { class: "cursor", width: size + 1, height: ROW_HEIGHT, visibility: "hidden" });
  root.append(mark);
  let at = null;
  const show = (row, column) => {
    at = [row, column];
    mark.setAttribute("x", labels + column * size - 1);
    mark.setAttribute("y", row * ROW_HEIGHT);
    mark.setAttribute("visibility", "visible");
    readout.replaceChildren(...tell(row, column));
  };
  const hit = (event) => {
    const box = root.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left - labels) / size);
    const row = Math.floor((event.clientY - box.top) / ROW_HEIGHT);
    return row >= 0 && row < rows.length && column >= 0 && column < columns.length ? [row, column] : null;
  };
  root.addEventListener("pointermove", (event) => {
    const place = hit(event);
    if (place !== null) show(...place);
  });
  root.addEventListener("click", (event) => {
    const place = hit(event);
    if (place !== null) activate(...place);
  });
  root.addEventListener("focus", () => { if (at === null) show(0, columns.length - 1); });
  root.addEventListener("keydown", (event) => {
    const [row, column] = at ?? [0, columns.length - 1];
    const to = {
      ArrowLeft: [row, column - 1], ArrowRight: [row, column + 1], ArrowUp: [row - 1, column],
      ArrowDown: [row + 1, column], Home: [row, 0], End: [row, columns.length - 1],
    }[event.key];
    if (event.key === "Enter" && at !== null) activate(row, column);
    if (to === undefined) return;
    event.preventDefault();
    show(Math.min(rows.length - 1, Math.max(0, to[0])), Math.min(columns.length - 1, Math.max(0, to[1])));
  });
}

function heatLegend(low, high) {
  const levels = Array.from({ length: LEVELS }, (_, n) =>
    svg("rect", { x: n * 16, y: 0, width: 15, height: 12, class: `cell q${n}` }));
  return h("span", { class: "heat-legend" }, low,
    svg("svg", { width: LEVELS * 16, height: 12, "aria-hidden": true }, levels), high);
}
