// Which trajectories are shown, and in what order.

const NO_FILTER = { task: "", tag: "", from: "", to: "", status: "", pair: "", verdict: "", sort: "step" };

const VERDICTS = {
  p: { mark: "●", word: "pass", name: "pass" },
  f: { mark: "✕", word: "fail", name: "fail" },
  n: { mark: "·", word: "not applicable", name: "not_applicable" },
  i: { mark: "?", word: "no valid verdict", name: "invalid" },
};

const SORTS = {
  step: ["step", () => 0],
  advantage: ["advantage, highest first", (t, a, b) => (t.advantage[b] ?? -Infinity) - (t.advantage[a] ?? -Infinity)],
  disadvantage: ["advantage, lowest first", (t, a, b) => (t.advantage[a] ?? Infinity) - (t.advantage[b] ?? Infinity)],
  tokens: ["most tokens", (t, a, b) => t.tokens[b] - t.tokens[a]],
  turns: ["most turns", (t, a, b) => t.turns[b] - t.turns[a]],
  seconds: ["longest", (t, a, b) => t.seconds[b] - t.seconds[a]],
};

function matching(trajectories, filter) {
  const task = filter.task.trim().toLowerCase();
  const from = filter.from === "" ? -Infinity : Number(filter.from);
  const to = filter.to === "" ? Infinity : Number(filter.to);
  const pair = Number(filter.pair);
  const found = [];
  for (let i = 0; i < trajectories.length; i += 1) {
    if (trajectories.step[i] < from || trajectories.step[i] > to) continue;
    if (task !== "" && !trajectories.taskId(i).toLowerCase().includes(task)) continue;
    if (filter.tag !== "" && !trajectories.tags(i).includes(filter.tag)) continue;
    if (filter.status !== "" && trajectories.outcome(i) !== filter.status && trajectories.stateName(i) !== filter.status) continue;
    if (pair > 0 || filter.verdict !== "") {
      if (!hasVerdict(trajectories, i, pair, filter.verdict)) continue;
    }
    found.push(i);
  }
  const compare = SORTS[filter.sort]?.[1] ?? SORTS.step[1];
  return filter.sort === "step" ? found : found.sort((a, b) => compare(trajectories, a, b) || a - b);
}

function hasVerdict(trajectories, i, pair, verdict) {
  if (pair > 0) {
    const own = trajectories.verdict(i, pair);
    return verdict === "" ? own !== "" : own === verdict;
  }
  return trajectories.verdicts[i].includes(verdict);
}

function filterForm(data, trajectories, filter, onChange) {
  const index = trajectories.index;
  const change = (name) => (event) => onChange({ ...filter, [name]: event.target.value });
  const field = (label, control) => h("label", { class: "field" }, h("span", null, label), control);
  const select = (name, options) => {
    const control = h("select", { name, onchange: change(name) }, options.map(([value, text]) => h("option", { value }, text)));
    control.value = filter[name];
    return control;
  };
  const input = (name, props) => {
    const control = h("input", { name, ...props, oninput: change(name) });
    control.value = filter[name];
    return control;
  };
  const tags = [...new Set(index.tags.flat())].sort();
  const states = index.states.filter((_, n) => trajectories.state.includes(n));
  const steps = { type: "number", min: data.steps[0], max: data.steps.at(-1), inputmode: "numeric" };
  return h("form", { class: "filters", onsubmit: (event) => event.preventDefault() },
    field("Task", input("task", { type: "search", placeholder: "part of its id" })),
    tags.length > 1 ? field("Task type", select("tag", [["", "any"], ...tags.map((tag) => [tag, visible(tag)])])) : null,
    field("Step from", input("from", steps)), field("to", input("to", steps)),
    field("Status", select("status", [["", "any"], ["passed", "passed"], ["partial", "partly"], ["failed", "failed"], ["lost", "lost"],
      ...states.map((state) => [state, `ended: ${words(state)}`])])),
    data.pool.length > 0 ? field("Rubric", select("pair", [["", "any"], ...data.pool.map((pair) => [String(pair.pair_id), `R${pair.pair_id} ${visible(pair.title)}`])])) : null,
    data.pool.length > 0 ? field("Verdict", select("verdict", [["", "any"], ...Object.entries(VERDICTS).map(([letter, one]) => [letter, one.word])])) : null,
    field("Order", select("sort", Object.entries(SORTS).map(([name, [text]]) => [name, text]))),
    h("button", { type: "button", class: "quiet reset", onclick: () => onChange({ ...NO_FILTER }, true) }, "Reset"));
}
