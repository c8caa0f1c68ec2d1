// The pool as a timeline: one row a pair, and what stands behind each decision.

const BAR_HEIGHT = 26;
const STATE_WORDS = { hidden: "skill hidden", active: "skill on", retired: "retired" };
const EVENT_WORDS = {
  created: "created", imported: "imported", activated: "skill switched on", hidden: "skill hidden",
  refined: "skill refined", retired: "retired", kept: "kept",
};

function drawPool(view, data, openTrajectory) {
  if (data.pool.length === 0) {
    view.append(h("h2", null, "Pool"), h("p", { class: "muted" }, "This run has no rubric-skill pairs."));
    return;
  }
  const list = h("div", { class: "pairs" });
  const of = (state) => data.pool.filter((pair) => state === "all" || pair.state === state);
  const draw = (state) => list.replaceChildren(...of(state).map((pair) => pairRow(pair, data, openTrajectory)));
  const states = ["all", "active", "hidden", "retired"].filter((state) => of(state).length > 0);
  view.append(
    h("div", { class: "bar" }, h("h2", null, "Pool"),
      choice("Pairs", states.map((state) => [state, `${state === "active" ? "skill on" : state} ${of(state).length}`]), "all", draw)),
    poolLegend(data.bounds), stepAxis(data), list, ...refusals(data.rejections));
  draw("all");
}

function poolLegend(bounds) {
  const sample = (state) => svg("svg", { width: 26, height: 14, "aria-hidden": true },
    svg("rect", { width: 26, height: 14, class: `band ${state}` }), svg("rect", { y: 7, width: 26, height: 7, class: `level ${state}` }));
  const mark = (kind) => svg("svg", { width: 14, height: 14, "aria-hidden": true }, eventMark(kind, 7, 7));
  return h("p", { class: "muted caption pool-legend" },
    h("span", null, sample("hidden"), "skill hidden"), h("span", null, sample("active"), "skill on"),
    h("span", null, mark("refined"), "refined"), h("span", null, mark("retired"), "retired"),
    h("span", null, `The filled part is the pass rate p̂ of each window; lines at η_low = ${number(bounds.eta_low)} and η_high = ${number(bounds.eta_high)}.`));
}

function stepAxis(data) {
  const place = h("span");
  onWidth(place, (width) => {
    const last = Math.max(data.steps.at(-1), 1);
    const marks = ticks(0, last, Math.max(2, width / 90)).filter(Number.isInteger);
    place.replaceChildren(svg("svg", { width, height: 16, "aria-hidden": true }, marks.map((step) =>
      svg("text", { x: barX(step, last, width), y: 11, class: `tick ${step === 0 ? "" : "middle"}` }, step))));
  });
  return h("div", { class: "axis" }, h("span", null, ""), place);
}

function barX(step, last, width) {
  return 1 + (step / last) * (width - 16);
}

function eventMark(kind, x, y) {
  if (kind === "refined") return svg("path", { d: `M${x},${y - 5}l5,5l-5,5l-5,-5z`, class: "mark refined" });
  return svg("path", { d: `M${x - 5},${y}l3.5,3.5l6.5,-7`, class: "mark retired" });
}

function pairRow(pair, data, openTrajectory) {
  const bar = h("span", { class: "pair-bar" });
  onWidth(bar, (width) => bar.replaceChildren(pairBar(pair, data, width)));
  const details = h("div", { class: "pair-details", id: `pair-${pair.pair_id}`, hidden: true });
  const rate = pair.events.findLast((event) => event.pass_rate !== undefined && event.pass_rate !== null)?.pass_rate;
  const button = h("button", {
    type: "button", class: "pair-head", "aria-expanded": "false", "aria-controls": details.id,
    onclick: async () => {
      const isOpen = button.getAttribute("aria-expanded") === "true";
      button.setAttribute("aria-expanded", String(!isOpen));
      details.hidden = isOpen;
      if (details.childElementCount === 0) details.append(await pairDetails(pair, openTrajectory));
    },
  },
  h("span", { class: "pair-name" }, h("b", { class: "id" }, `R${pair.pair_id}`), h("span", { class: "title" }, visible(pair.title)),
    h("span", { class: "muted" }, `${pair.capability} · ${STATE_WORDS[pair.state]}${rate === undefined ? "" : ` · ${percent(rate, 0)}`}`)),
  bar);
  return h("div", { class: "pair" }, button, details);
}

// Segments from event to event; a segment's level is the pass rate measured in it.
function pairSegments(pair, lastStep) {
  const segments = [];
  let state = "hidden";
  pair.events.forEach((event, n) => {
    if (event.type === "activated" || event.type === "refined") state = "active";
    if (event.type === "hidden") state = "hidden";
    if (event.type === "retired") return;
    const next = pair.events[n + 1];
    const end = next?.step ?? Math.max(lastStep, event.step);
    segments.push({ state, from: event.step, to: end, rate: next?.pass_rate ?? null, isMeasured: next !== undefined });
  });
  return segments;
}

function pairBar(pair, data, width) {
  const last = Math.max(data.steps.at(-1), 1);
  const x = (step) => barX(step, last, width);
  const root = svg("svg", { width, height: BAR_HEIGHT, role: "img", "aria-label": pairSummary(pair) });
  root.append(svg("path", { d: `M1,${BAR_HEIGHT - 0.5}H${width - 15}`, class: "grid" }));
  const [inner, top] = [BAR_HEIGHT - 4, 2];
  for (const { state, from, to, rate } of pairSegments(pair, last)) {
    const span = Math.max(1, x(to) - x(from) - 1);
    const level = rate === null ? 0 : rate * inner;
    root.append(
      svg("rect", { x: x(from), y: top, width: span, height: inner, class: `band ${state}` }),
      svg("rect", { x: x(from), y: top + inner - level, width: span, height: level, class: `level ${state}` }));
    if (rate !== null && span > 30) {
      root.append(svg("text", { x: x(from) + span / 2, y: BAR_HEIGHT / 2 + 3.5, class: "rate middle" }, `${Math.round(100 * rate)} %`));
    }
  }
  const start = x(pair.events[0].step);
  const end = x(pair.events.at(-1).type === "retired" ? pair.events.at(-1).step : last);
  for (const bound of [data.bounds.eta_low, data.bounds.eta_high]) {
    if (bound !== null) root.append(svg("path", { d: `M${start},${top + inner * (1 - bound)}H${end}`, class: "bound" }));
  }
  for (const event of pair.events) {
    if (event.type === "refined") root.append(eventMark("refined", x(event.step), BAR_HEIGHT / 2));
    if (event.type === "retired") root.append(eventMark("retired", x(event.step) + 8, BAR_HEIGHT / 2));
  }
  return root;
}

function pairSummary(pair) {
  return pair.events.filter((event) => event.type !== "kept").map((event) => `${EVENT_WORDS[event.type]} at step ${event.step}`).join(", ");
}

async function pairDetails(pair, openTrajectory) {
  const evidence = await block(`evidence-${pair.pair_id}`);
  const rubric = pair.rubric;
  const texts = pair.events.filter((event) => event.type === "refined");
  const part = (name, text) => [h("dt", null, name), h("dd", null, visible(text))];
  return h("div", { class: "pair-body" },
    h("dl", { class: "texts" },
      part("applies", rubric.applicability), part("fail", rubric.fail_condition), part("pass", rubric.pass_condition),
      texts.length > 0 ? texts.map((event, n) => part(n === 0 ? "first skill" : `revision ${event.revision - 1}`, event.old_text ?? "")) : [],
      part(texts.length > 0 ? `skill, revision ${texts.at(-1).revision}` : "skill", pair.skill)),
    h("ol", { class: "events" }, pair.events.map((event, n) => eventItem(event, evidence[n], openTrajectory))));
}

function eventItem(event, evidence, openTrajectory) {
  const lines = evidenceParts(evidence, openTrajectory);
  const head = [h("span", { class: "when" }, `step ${event.step}`), h("b", null, EVENT_WORDS[event.type]), h("span", { class: "muted" }, visible(event.why))];
  return lines.length === 0
    ? h("li", { class: event.type }, h("div", { class: "event" }, head))
    : h("li", { class: event.type }, h("details", null, h("summary", { class: "event" }, head), lines));
}

function evidenceParts(evidence, openTrajectory) {
  const link = (place) => h("button", {
    type: "button", class: "link", onclick: () => openTrajectory(place.step, place.task_id, place.rollout),
  }, `step ${place.step}, ${visible(place.task_id)}, rollout ${place.rollout}`);
  const parts = (evidence.reasons ?? []).map((reason) => h("p", { class: "quote" },
    h("span", { class: `verdict ${evidence.outcome}` }, VERDICTS[evidence.outcome[0]].word), " ", visible(reason.reason), " ", link(reason)));
  for (const [side, name] of [["issues", "with the issue"], ["contrasts", "without it"]]) {
    if (!evidence[side]?.length) continue;
    parts.push(h("h4", null, `Records ${name}`), evidence[side].map((record) => h("p", { class: "quote" }, link(record),
      record.diagnostics.map((found) => h("span", { class: "found" }, `${found.kind}: ${visible(found.behaviour)}`)))));
  }
  const tags = Object.entries(evidence.tags ?? {});
  if (tags.length > 0) parts.push(verdictTable(tags));
  return parts;
}

function verdictTable(tags) {
  const rows = tags.map(([tag, counts]) => {
    const [passes, fails] = [counts.pass ?? 0, counts.fail ?? 0];
    return h("tr", null, h("th", { scope: "row" }, visible(tag)), h("td", null, passes), h("td", null, fails), h("td", null, counts.not_applicable ?? 0),
      h("td", null, passes + fails > 0 ? percent(passes / (passes + fails), 0) : "–"));
  });
  return h("table", { class: "numbers" },
    h("thead", null, h("tr", null, ["task type", "pass", "fail", "n/a", "p̂"].map((name) => h("th", { scope: "col" }, name)))),
    h("tbody", null, rows));
}

function refusals(rejections) {
  if (rejections.length === 0) return [];
  return [h("details", { class: "fold" }, h("summary", null, `Proposals that came to nothing (${rejections.length})`),
    h("ol", { class: "events" }, rejections.map((one) => h("li", null, h("span", { class: "when" }, `step ${one.step}`), visible(one.text)))))];
}
