// A table of any length: only the rows in sight exist.

const LINE_HEIGHT = 30;
const MARGIN_ROWS = 8;
const MOST_MARKS = 14;
const HEADINGS = { roll: "#", adv: "adv." };
const OUTCOMES = { passed: "●", partial: "◐", failed: "○", lost: "✕" };

class TrajectoryTable {
  constructor(trajectories, onSelect) {
    this.trajectories = trajectories;
    this.onSelect = onSelect;
    this.rows = [];
    this.place = -1;
    this.body = h("div", { class: "rows" });
    this.scroller = h("div", {
      class: "scroller", role: "grid", tabindex: 0, "aria-label": "Trajectories",
      onscroll: () => this.draw(), onkeydown: (event) => this.onKey(event),
    }, this.body);
    const names = ["step", "task", "roll", "ended", "reward", "adv", "tokens", "verdicts"];
    const most = Math.max(4, ...trajectories.index.judged_sets.map((ids) => ids.length));
    this.node = h("div", { class: "table card" },
      h("div", { class: "line head", "aria-hidden": true }, names.map((name) => h("span", { class: `col ${name}` }, HEADINGS[name] ?? name))),
      this.scroller);
    this.node.style.setProperty("--verdicts", `${Math.min(MOST_MARKS, most) * 11 + 4}px`);
    new ResizeObserver(() => this.draw()).observe(this.scroller);
  }

  show(rows, selected) {
    this.rows = rows;
    this.place = rows.indexOf(selected);
    this.body.style.height = `${rows.length * LINE_HEIGHT}px`;
    this.scroller.setAttribute("aria-rowcount", rows.length);
    if (this.place >= 0) this.reveal();
    else this.scroller.scrollTop = 0;
    this.draw();
  }

  reveal() {
    const [top, height] = [this.place * LINE_HEIGHT, this.scroller.clientHeight];
    if (top < this.scroller.scrollTop) this.scroller.scrollTop = top;
    if (top + LINE_HEIGHT > this.scroller.scrollTop + height) this.scroller.scrollTop = top + LINE_HEIGHT - height;
  }

  select(place) {
    if (place < 0 || place >= this.rows.length) return;
    this.place = place;
    this.reveal();
    this.draw();
    this.onSelect(this.rows[place]);
  }

  onKey(event) {
    const page = Math.max(1, Math.floor(this.scroller.clientHeight / LINE_HEIGHT) - 1);
    const last = this.rows.length - 1;
    const to = {
      ArrowDown: this.place + 1, ArrowUp: this.place - 1, PageDown: this.place + page,
      PageUp: this.place - page, Home: 0, End: last,
    }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    this.select(Math.min(last, Math.max(0, to)));
  }

  draw() {
    const first = Math.max(0, Math.floor(this.scroller.scrollTop / LINE_HEIGHT) - MARGIN_ROWS);
    const end = Math.min(this.rows.length, Math.ceil((this.scroller.scrollTop + this.scroller.clientHeight) / LINE_HEIGHT) + MARGIN_ROWS);
    const lines = [];
    for (let place = first; place < end; place += 1) lines.push(this.line(place));
    this.body.replaceChildren(...lines);
    const selected = this.place >= first && this.place < end ? `row-${this.place}` : "";
    this.scroller.setAttribute("aria-activedescendant", selected);
  }

  line(place) {
    const t = this.trajectories;
    const i = this.rows[place];
    const outcome = t.outcome(i);
    const cell = (name, ...content) => h("span", { class: `col ${name}`, role: "gridcell" }, content);
    const node = h("div", {
      class: "line", role: "row", id: `row-${place}`, "aria-rowindex": place + 1, "aria-selected": String(place === this.place),
      "data-outcome": outcome, onclick: () => this.select(place),
    },
    cell("step", t.step[i]), cell("task", visible(t.taskId(i))), cell("roll", t.rollout[i]),
    cell("ended", h("span", { class: `outcome ${outcome}`, title: outcome }, OUTCOMES[outcome]), words(t.stateName(i))),
    cell("reward", t.reward[i] === null ? "–" : number(t.reward[i])), cell("adv", advantage(t.advantage[i])),
    cell("tokens", count(t.tokens[i])), cell("verdicts", verdictMarks(t, i)));
    node.style.top = `${place * LINE_HEIGHT}px`;
    return node;
  }
}

function verdictMarks(trajectories, i) {
  if (trajectories.judged[i] < 0) return null;
  const ids = trajectories.index.judged_sets[trajectories.judged[i]];
  return [...trajectories.verdicts[i]].map((letter, n) =>
    h("span", { class: `verdict ${VERDICTS[letter].name}`, title: `R${ids[n]}: ${VERDICTS[letter].word}` }, VERDICTS[letter].mark));
}
