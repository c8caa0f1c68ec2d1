// Numbers and texts as people read them.

const MINUS = "\u2212";
const CONTROL_NAMES = { 0: "NUL", 7: "BEL", 8: "BS", 13: "CR", 27: "ESC", 127: "DEL" };

function signed(text) {
  return text.replace("-", MINUS);
}

function number(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return signed(value.toExponential(2));
  const digits = size >= 100 || Number.isInteger(value) ? 0 : size >= 10 ? 1 : 3;
  return signed(value.toLocaleString("en", { maximumFractionDigits: digits }));
}

function count(value) {
  return value.toLocaleString("en", { maximumFractionDigits: 0 });
}

function percent(value, digits = 1) {
  return value === null || value === undefined ? "–" : `${(100 * value).toFixed(digits)} %`;
}

function advantage(value) {
  if (value === null) return "–";
  return signed(`${value > 0 ? "+" : ""}${value.toFixed(2)}`);
}

function bytes(value) {
  return value >= 1e9 ? `${(value / 1e9).toFixed(1)} G` : value >= 1e6
    ? `${(value / 1e6).toFixed(1)} M` : value >= 1e4 ? `${(value / 1e3).toFixed(0)} k` : count(value);
}

function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 2 : 1)} s`;
  const total = Math.round(seconds);
  const minutes = Math.floor(total / 60) % 60;
  const hours = Math.floor(total / 3600);
  if (hours > 0) return `${hours} h ${String(minutes).padStart(2, "0")} min`;
  return `${minutes} min ${String(total % 60).padStart(2, "0")} s`;
}

function words(name) {
  return name.replaceAll("_", " ");
}

// What the model and its sandbox wrote, with every character that would act instead of show
// (terminal codes, marks that turn the direction of text) replaced by one that shows.
function visible(text) {
  return text
    .replace(/\r\n/g, "\n")
    .replace(/[\u0000-\u0008\u000b-\u001f\u007f]/g, (c) =>
      `\u27e8${CONTROL_NAMES[c.charCodeAt(0)] ?? c.charCodeAt(0).toString(16).padStart(2, "0")}\u27e9`)
    .replace(/[\u0080-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g, (c) =>
      `\u27e8U+${c.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}\u27e9`);
}
