// One trajectory: what was asked, done and answered, and how it was judged.

async function drawTrajectory(place, i, data, trajectories, view) {
  const step = trajectories.step[i];
  const details = (await block(`step-${step}`))[trajectories.placeInStep(i)];
  const texts = await block("tokens");
  // A newer choice may have been drawn while this one was unpacked.
  if (view.current !== i) return;
  const parts = [trajectoryHead(i, details, trajectories)];
  if (details.failure !== undefined) {
    parts.push(h("p", { class: "notice" }, `Lost to infrastructure (${details.failure}): ${visible(details.message)}`));
  } else {
    parts.push(
      section("Instruction", h("pre", { class: "text" }, visible(details.instruction))),
      details.skills.length > 0 ? section("Skills in the prompt", h("ul", { class: "skills" }, details.skills.map((skill) =>
        h("li", null, h("b", { class: "id" }, `R${skill.pair_id}`), skill.revision > 0 ? ` revision ${skill.revision}: ` : " ", visible(skill.text))))) : null,
      details.cut ? cutNotice(details.cut, i, trajectories) : null,
      turnsSection(details, texts, data, step - 1, view),
      details.review ? reviewSection(details.review, data) : null);
  }
  place.replaceChildren(...parts.filter((part) => part !== null));
  place.scrollTop = 0;
}

function section(title, ...content) {
  return h("section", { class: "part" }, h("h3", null, title), content);
}

function trajectoryHead(i, details, trajectories) {
  const t = trajectories;
  const outcome = t.outcome(i);
  const fact = (name, value) => h("div", null, h("dt", null, name), h("dd", null, value));
  return h("header", { class: "trajectory-head" },
    h("h2", null, h("span", { class: `outcome ${outcome}`, "aria-hidden": true }, OUTCOMES[outcome]), visible(t.taskId(i)), h("span", { class: "muted" }, ` rollout ${t.rollout[i]}`)),
    h("p", { class: "muted" }, `step ${t.step[i]} · ${t.tags(i).map(visible).join(", ") || "no type"} · ${visible(details.why)}`),
    h("dl", { class: "facts" },
      fact("outcome", outcome), fact("ended", words(t.stateName(i))), fact("reward", number(t.reward[i])),
      fact("shaped", number(t.shaped[i])), fact("advantage", advantage(t.advantage[i])), fact("tokens", count(t.tokens[i])),
      fact("turns", t.turns[i]),
      Object.entries(details.durations_s ?? {}).map(([name, seconds]) => fact(words(name), duration(seconds)))));
}

function cutNotice(cut, i, trajectories) {
  const lost = [cut.tokens > 0 ? `${count(cut.tokens)} tokens` : "", cut.chars > 0 ? `${count(cut.chars)} characters` : ""].filter(Boolean).join(" and ");
  return h("p", { class: "notice" }, `To keep this file small, ${lost} are left out. All of it: `,
    h("code", null, `python -m arise.runs trajectory <run> ${trajectories.step[i]} ${visible(trajectories.taskId(i))} ${trajectories.rollout[i]}`));
}

function turnsSection(details, texts, data, iteration, view) {
  const hasTokens = details.turns.some((turn) => turn.tokens?.length > 0);
  const hasRatios = details.turns.some((turn) => turn.log_ratios !== undefined);
  if (!hasRatios && view.colorBy === "ratio") view.colorBy = "probability";
  const list = h("ol", { class: "turns" });
  const legend = h("p", { class: "token-legend" });
  const readout = h("p", { class: "readout token-readout", "aria-live": "polite" });
  const draw = () => {
    const colorBy = hasTokens ? view.colorBy : "text";
    list.replaceChildren(...details.turns.map((turn, n) => turnItem(turn, n, colorBy, texts, data.bounds, iteration, readout)));
    legend.replaceChildren(...(colorBy === "text" ? [] : tokenLegend(colorBy, data.bounds)));
    readout.textContent = colorBy === "text" ? "" : ratioSummary(details, hasRatios);
  };
  const options = [["text", "text"], ...(hasRatios ? [["ratio", "importance ratio ω"]] : []), ["probability", "probability"]];
  draw();
  return h("section", { class: "part" },
    h("div", { class: "bar" }, h("h3", null, "Turns"),
      hasTokens ? choice("Generated text as", options, view.colorBy, (value) => { view.colorBy = value; draw(); }) : null),
    legend, readout, list);
}

function ratioSummary(details, hasRatios) {
  if (!hasRatios) return "Importance ratios are not recorded for this trajectory. Point at a token for its numbers.";
  const finite = details.turns.flatMap((turn) => turn.log_ratios ?? []).filter((value) => value !== null);
  if (finite.length === 0) return "";
  const worst = finite.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
  return worst < 1e-3
    ? `On-policy: every ω is within 1 ± ${worst < 1e-5 ? "0.00001" : worst.toFixed(5)}. Point at a token for its numbers.`
    : `ω from ${Math.exp(Math.min(...finite)).toFixed(3)} to ${Math.exp(Math.max(...finite)).toFixed(3)}. Point at a token for its numbers.`;
}

function turnItem(turn, n, colorBy, texts, bounds, iteration, readout) {
  const generated = colorBy === "text" || !turn.tokens?.length
    ? h("pre", { class: "text generated" }, visible(turn.text))
    : tokenStrip(turn, colorBy, texts, bounds, iteration, readout);
  const action = turn.action !== undefined && turn.action !== null;
  const exit = turn.exit_code;
  return h("li", { class: "turn" },
    h("span", { class: "turn-number" }, n + 1),
    h("div", { class: "turn-body" }, generated,
      action ? h("pre", { class: "text command" }, visible(turn.action)) : null,
      turn.finish_reason ? h("p", { class: "muted" }, `generation ended by ${turn.finish_reason}`) : null,
      turn.observation ? h("pre", { class: "text output" }, visible(turn.observation)) : null,
      exit !== undefined && exit !== 0 ? h("p", { class: "exit" }, `exit ${exit}`) : null));
}

function reviewSection(review, data) {
  const titles = new Map(data.pool.map((pair) => [pair.pair_id, pair.title]));
  const verdicts = new Map(review.verdicts.map((verdict) => [verdict.pair_id, verdict]));
  const rows = review.judged_pair_ids.map((id) => {
    const verdict = verdicts.get(id) ?? { outcome: "invalid", reason: "the judge gave no valid answer" };
    const shown = VERDICTS[verdict.outcome[0]];
    return h("tr", null, h("th", { scope: "row" }, h("b", { class: "id" }, `R${id}`), " ", visible(titles.get(id) ?? "")),
      h("td", { class: "outcome-cell" }, h("span", { class: `verdict ${shown.name}` }, shown.mark), " ", shown.word), h("td", null, visible(verdict.reason)));
  });
  return h("section", { class: "part" }, h("h3", null, "Judged"),
    rows.length > 0 ? h("table", { class: "verdict-table" },
      h("thead", null, h("tr", null, ["rubric", "verdict", "reason"].map((name) => h("th", { scope: "col" }, name)))), h("tbody", null, rows)) : null,
    review.diagnostics.length > 0 ? h("ul", { class: "diagnostics" }, review.diagnostics.map((found) =>
      h("li", null, h("span", { class: `kind ${found.kind}` }, found.kind), " ", visible(found.behaviour), found.covered_by === null ? "" : ` (R${found.covered_by})`,
        found.signal ? h("span", { class: "muted" }, ` ${visible(found.signal)}`) : null))) : null,
    review.error ? h("p", { class: "notice" }, `Judge: ${visible(review.error)}`) : null);
}
