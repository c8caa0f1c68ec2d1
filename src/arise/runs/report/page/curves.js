// The overview: key figures, the curves that say how a run goes, all other scalars, settings.

const CAPABILITIES = ["understanding", "execution", "verification", "debugging", "efficiency"];

// [title, note, format, low, high, [[scalar, name, shape], …]]
const MAIN_CURVES = [
  ["Pass rate", "rollouts whose reward reaches 1", percent, 0, null, [
    ["reward/pass_rate", "training", "line"], ["evaluation/pass_rate", "held out, without skills", "points"]]],
  ["Rubric reward", "passes among applicable verdicts", percent, 0, 1, [
    ["rubric/mean_reward", "mean", "line"]]],
  ["Rubric reward by capability", null, percent, 0, 1,
    CAPABILITIES.map((name) => [`rubric/pass_rate_${name}`, name, "line"])],
  ["Groups without a signal", "share of groups", percent, 0, 1, [
    ["reward/all_fail_group_share", "all fail", "line"], ["reward/all_pass_group_share", "all pass", "line"],
    ["reward/zero_advantage_group_share", "no advantage", "line"]]],
  ["Pool", null, number, 0, null, [
    ["pool/size", "pairs", "steps"], ["pool/active_skills", "skills on", "steps"]]],
  ["Exploration", null, percent, 0, 1, [
    ["sampler/coverage", "coverage", "line"], ["sampler/discovery_probability", "discovery ρ", "line"]]],
  ["Generated tokens", "mean of a trajectory", number, 0, null, [
    ["rollout/generated_tokens_mean", "tokens", "line"]]],
  ["Turns", "mean of a trajectory", number, 0, null, [["rollout/turns_mean", "turns", "line"]]],
  ["Entropy", "nats a token", number, 0, null, [["loss/entropy", "entropy", "line"]]],
  ["Gradient norm", "before clipping", number, 0, null, [["loss/grad_norm", "norm", "line"]]],
  ["Importance ratio ω", "before the step", number, null, null, [
    ["ratio/min", "least", "line"], ["ratio/mean", "mean", "line"], ["ratio/max", "largest", "line"]]],
  ["Lost rollouts", "by infrastructure", number, 0, null, [
    ["rollout/failures_inference", "inference", "line"], ["rollout/failures_sandbox", "sandbox", "line"],
    ["rollout/failures_verifier", "verifier", "line"], ["rollout/failures_harness", "harness", "line"]]],
];

function drawOverview(view, data, trajectories) {
  const grid = h("div", { class: "charts" });
  const others = h("div", { class: "charts" });
  const filter = h("input", { type: "search", placeholder: "name, such as judge/", "aria-label": "Scalars by name" });
  let isSmooth = data.steps.length > 30;
  const drawMain = () => grid.replaceChildren(...MAIN_CURVES.map((spec) => mainCurve(spec, data.curves, isSmooth)).filter(Boolean));
  const drawOthers = () => others.replaceChildren(...scalarCharts(data.curves, filter.value, isSmooth));
  filter.addEventListener("input", drawOthers);
  const folded = h("details", { class: "fold", ontoggle: (event) => { if (event.target.open) drawOthers(); } },
    h("summary", null, `All scalars (${Object.keys(data.curves).length})`),
    h("label", { class: "field" }, "Name contains ", filter), others);
  view.append(
    keyFigures(data, trajectories),
    h("div", { class: "bar" }, h("h2", null, "Curves"),
      choice("Lines", [["raw", "as measured"], ["smooth", "smoothed"]], isSmooth ? "smooth" : "raw", (value) => {
        isSmooth = value === "smooth";
        drawMain();
        if (folded.open) drawOthers();
      })),
    grid, folded,
    h("details", { class: "fold" }, h("summary", null, "Settings"), h("pre", { class: "yaml" }, visible(data.config))));
  drawMain();
}

function mainCurve([title, note, format, low, high, names], curves, isSmooth) {
  // A name has its colour whether or not the others are there.
  const series = names.map(([scalar, name, shape], n) => ({ name, shape, color: 1 + n, ...curves[scalar] }))
    .filter((one) => one.steps !== undefined);
  const isSilent = title === "Lost rollouts" && series.every((one) => one.values.every((value) => value === 0));
  if (isSilent) return null;
  return lineChart({ title, note, series, format, low, high, isSmooth });
}

function scalarCharts(curves, wanted, isSmooth) {
  return Object.entries(curves).filter(([name]) => name.includes(wanted.trim())).map(([name, points]) =>
    lineChart({ title: visible(name), series: [{ name: visible(name), shape: "line", color: 1, ...points }], isSmooth }));
}

function keyFigures(data, trajectories) {
  const curve = (name) => data.curves[name]?.values ?? [];
  const sum = (values) => values.reduce((total, value) => total + value, 0);
  const held = data.held_out;
  const pairs = data.pool;
  const figure = (value, label, note) => h("div", { class: "figure" },
    h("span", { class: "label" }, label), h("span", { class: "value" }, value), h("span", { class: "muted" }, note ?? ""));
  const figures = [];
  if (held.length > 0) {
    const [before, after] = [held[0], held.at(-1)];
    figures.push(figure(`${after.percent.toFixed(1)} %`, "held-out pass rate",
      held.length > 1 ? `from ${before.percent.toFixed(1)} %, ${count(after.num_tasks)} tasks` : `${count(after.num_tasks)} tasks`));
  }
  const rates = curve("reward/pass_rate");
  if (rates.length > 0) figures.push(figure(percent(rates.at(-1)), "training pass rate", `from ${percent(rates[0])}`));
  if (pairs.length > 0) {
    const retired = pairs.filter((pair) => pair.state === "retired").length;
    figures.push(figure(count(pairs.length), "rubric-skill pairs", `${retired} retired, ${pairs.filter((p) => p.state === "active").length} with the skill on`));
  }
  let lost = 0;
  let tokens = 0;
  for (let i = 0; i < trajectories.length; i += 1) {
    if (trajectories.isLost(i)) lost += 1;
    tokens += trajectories.tokens[i];
  }
  figures.push(figure(count(trajectories.length), "trajectories", lost > 0 ? `${count(lost)} lost` : "none lost"));
  figures.push(figure(bytes(tokens), "generated tokens", `${number(tokens / Math.max(1, trajectories.length - lost))} a trajectory`));
  const times = curve("time/iteration_s");
  if (times.length > 0) figures.push(figure(duration(sum(times)), "time", `${duration(sum(times) / times.length)} an iteration`));
  return h("div", { class: "figures" }, figures);
}
