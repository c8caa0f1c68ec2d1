// Generated tokens, coloured by importance ratio or by probability.

const RATIO_LIMITS = [0.02, 0.1, 0.3];
const PROBABILITY_LIMITS = [0.9, 0.5, 0.2, 0.05];

// "r-3" to "r3" by log ω, "masked" where the ratio filter drops the token
function ratioClass(logRatio, bounds) {
  if (logRatio === null) return "masked";
  const ratio = Math.exp(logRatio);
  if (ratio <= bounds.ratio_low || ratio >= bounds.ratio_high) return "masked";
  const level = RATIO_LIMITS.filter((limit) => Math.abs(logRatio) >= limit).length;
  return level === 0 ? "" : `r${logRatio < 0 ? "-" : ""}${level}`;
}

// "p1" (below 0.9) to "p4" (below 0.05)
function probabilityClass(logprob) {
  if (logprob === null) return "masked";
  const level = PROBABILITY_LIMITS.filter((limit) => Math.exp(logprob) < limit).length;
  return level === 0 ? "" : `p${level}`;
}

function tokenStrip(turn, colorBy, texts, bounds, iteration, readout) {
  const strip = h("p", { class: "strip" });
  turn.tokens.forEach((token, n) => {
    const logRatio = turn.log_ratios?.[n];
    const logprob = turn.logprobs?.[n] ?? null;
    const name = colorBy === "ratio" ? (logRatio === undefined ? "" : ratioClass(logRatio, bounds)) : probabilityClass(logprob);
    const text = texts[token] === undefined ? `#${token} ` : tokenText(texts[token]);
    const span = h("span", { class: `token ${name}` }, text);
    const tell = () => { readout.textContent = describeToken(turn, n, texts, iteration); };
    span.addEventListener("pointerenter", tell);
    strip.append(span);
    if (texts[token]?.endsWith("\n")) strip.append(h("br"));
  });
  return strip;
}

function tokenText(text) {
  return visible(text).replaceAll("\n", "↵").replaceAll("\t", "→");
}

function describeToken(turn, n, texts, iteration) {
  const token = turn.tokens[n];
  const parts = [`“${tokenText(texts[token] ?? `#${token}`)}” (${token})`];
  const logRatio = turn.log_ratios?.[n];
  if (logRatio !== undefined) parts.push(logRatio === null ? "ω is not a number" : `ω = ${Math.exp(logRatio).toFixed(5)}`);
  const logprob = turn.logprobs?.[n] ?? null;
  if (logprob !== null) parts.push(`sampled with probability ${Math.exp(logprob).toFixed(3)}`);
  parts.push(`by policy ${turn.versions?.[n] ?? iteration}`);
  return parts.join(" · ");
}

function tokenLegend(colorBy, bounds) {
  const key = (name, text) => h("span", { class: "key" }, h("span", { class: `token ${name}` }, "token"), text);
  if (colorBy === "probability") {
    return [key("", "≥ 0.9"), key("p1", "< 0.9"), key("p2", "< 0.5"), key("p3", "< 0.2"), key("p4", "< 0.05")];
  }
  return [key("r-3", "ω < 0.74"), key("r-2", "< 0.90"), key("r-1", "< 0.98"), key("", "near 1"), key("r1", "> 1.02"),
    key("r2", "> 1.10"), key("r3", "> 1.35"), key("masked", `not trained (ω ≤ ${number(bounds.ratio_low)} or ≥ ${number(bounds.ratio_high)})`)];
}
