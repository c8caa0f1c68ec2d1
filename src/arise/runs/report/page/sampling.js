// Where the rollouts went: task types, capabilities or reasons by step.

const ROWS = {
  tag: { name: "task type", of: (groups, tags, g) => tags[groups.task[g]] },
  capability: {
    name: "capability aimed at",
    of: (groups, tags, g) => [groups.capability[g] ?? `none (${words(groups.by[g])})`],
  },
  by: { name: "why drawn", of: (groups, tags, g) => [groups.by[g]] },
};

function drawSampling(view, data, trajectories, openTrajectories) {
  const state = { rows: "tag", cells: "count" };
  const place = h("div");
  const draw = () => place.replaceChildren(...samplingMap(state, data, trajectories, openTrajectories));
  view.append(
    h("div", { class: "bar" }, h("h2", null, "Where the rollouts went"),
      choice("Rows", [["tag", "task types"], ["capability", "capabilities"], ["by", "reasons"]], state.rows,
        (value) => { state.rows = value; draw(); }),
      choice("Cells", [["count", "tasks drawn"], ["rate", "pass rate"]], state.cells,
        (value) => { state.cells = value; draw(); })),
    place);
  draw();
}

// By row name and step: tasks drawn, rollouts graded, passes.
function samplingCounts(kind, trajectories) {
  const { groups, tags } = trajectories.index;
  const rowsOf = groups.step.map((_, g) => ROWS[kind].of(groups, tags, g));
  const table = new Map();
  const cell = (row, step) => {
    if (!table.has(row)) table.set(row, new Map());
    const cells = table.get(row);
    if (!cells.has(step)) cells.set(step, { tasks: 0, rollouts: 0, passes: 0 });
    return cells.get(step);
  };
  groups.step.forEach((step, g) => { for (const row of rowsOf[g]) cell(row, step).tasks += 1; });
  for (let i = 0; i < trajectories.length; i += 1) {
    if (trajectories.isLost(i)) continue;
    for (const row of rowsOf[trajectories.group[i]]) {
      const found = cell(row, trajectories.step[i]);
      found.rollouts += 1;
      found.passes += trajectories.reward[i] >= 1 ? 1 : 0;
    }
  }
  return table;
}

function samplingMap(state, data, trajectories, openTrajectories) {
  const table = samplingCounts(state.rows, trajectories);
  const total = (row) => [...table.get(row).values()].reduce((sum, cell) => sum + cell.tasks, 0);
  const rows = [...table.keys()].sort((a, b) => total(b) - total(a) || a.localeCompare(b));
  const most = Math.max(1, ...[...table.values()].flatMap((cells) => [...cells.values()].map((cell) => cell.tasks)));
  const at = (r, c) => table.get(rows[r]).get(data.steps[c]);
  const value = (r, c) => {
    const cell = at(r, c);
    if (cell === undefined) return null;
    if (state.cells === "count") return (cell.tasks - 1) / Math.max(1, most - 1);
    return cell.rollouts === 0 ? null : cell.passes / cell.rollouts;
  };
  const tell = (r, c) => {
    const cell = at(r, c) ?? { tasks: 0, rollouts: 0, passes: 0 };
    const rate = cell.rollouts > 0 ? `, ${percent(cell.passes / cell.rollouts)} passed` : "";
    return [h("b", null, visible(rows[r])), ` at step ${data.steps[c]}: ${cell.tasks} ${cell.tasks === 1 ? "task" : "tasks"}, ${cell.rollouts} rollouts${rate}`];
  };
  const activate = (r, c) => {
    const step = String(data.steps[c]);
    openTrajectories({ from: step, to: step, ...(state.rows === "tag" ? { tag: rows[r] } : {}) });
  };
  const title = `${state.cells === "count" ? "Tasks drawn" : "Pass rate"} by ${ROWS[state.rows].name} and step`;
  return [
    h("p", { class: "muted caption" }, `${title}. Click a cell for its trajectories.`,
      state.cells === "count" ? heatLegend("1", String(most)) : heatLegend("0 %", "100 %")),
    heatmap({ title, rows: rows.map(visible), columns: data.steps, value, tell, activate }),
  ];
}
