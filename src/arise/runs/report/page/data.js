// The blocks of this file, unpacked when they are needed.

const MOST_BLOCKS = 32;
const unpacked = new Map();
const isParsed = document.readyState === "loading"
  ? new Promise((resolve) => document.addEventListener("DOMContentLoaded", resolve))
  : Promise.resolve();

function block(name) {
  let data = unpacked.get(name);
  if (data === undefined) {
    data = unpack(name);
    // The oldest go first, so that reading through a long run does not fill the memory.
    if (unpacked.size >= MOST_BLOCKS) unpacked.delete(unpacked.keys().next().value);
  } else {
    unpacked.delete(name);
  }
  unpacked.set(name, data);
  return data;
}

async function unpack(name) {
  // Large files are still arriving when the first click comes.
  if (byId(`data-${name}`) === null) await isParsed;
  const element = byId(`data-${name}`);
  if (element === null) throw new Error(`This file is incomplete: it has no ${name}.`);
  const packed = new Blob([fromBase64(element.textContent)]);
  const stream = packed.stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).json();
}

function fromBase64(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i += 1) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

// The index with what is asked of it. A trajectory is its row number.
class Trajectories {
  constructor(index) {
    Object.assign(this, index.columns);
    this.index = index;
    this.length = this.step.length;
    this.positions = index.judged_sets.map((ids) => new Map(ids.map((id, place) => [id, place])));
  }

  taskId(i) { return this.index.tasks[this.index.groups.task[this.group[i]]]; }

  tags(i) { return this.index.tags[this.index.groups.task[this.group[i]]]; }

  stateName(i) { return this.index.states[this.state[i]]; }

  isLost(i) { return this.state[i] >= this.index.num_finish_reasons; }

  // "passed", "partial", "failed" or "lost"
  outcome(i) {
    if (this.isLost(i)) return "lost";
    return this.reward[i] >= 1 ? "passed" : this.reward[i] > 0 ? "partial" : "failed";
  }

  // "p", "f", "n", "i", or nothing where the pair was not judged
  verdict(i, pairId) {
    const place = this.judged[i] < 0 ? undefined : this.positions[this.judged[i]].get(pairId);
    return place === undefined ? "" : this.verdicts[i][place];
  }

  // Place among the trajectories of its step, which is its place in the step's block.
  placeInStep(i) {
    let first = i;
    while (first > 0 && this.step[first - 1] === this.step[i]) first -= 1;
    return i - first;
  }

  find(step, taskId, rollout) {
    for (let i = 0; i < this.length; i += 1) {
      if (this.step[i] === step && this.rollout[i] === rollout && this.taskId(i) === taskId) return i;
    }
    return -1;
  }
}
