// The trajectory browser: filters, table, one trajectory beside it.

class Browser {
  constructor(view, data, trajectories, onChange) {
    Object.assign(this, { data, trajectories, onChange, current: -1, colorBy: "ratio", filter: { ...NO_FILTER } });
    this.form = h("div");
    this.counter = h("p", { class: "counter", "aria-live": "polite" });
    this.detail = h("article", { class: "card detail", tabindex: 0, "aria-label": "Trajectory" });
    this.table = new TrajectoryTable(trajectories, (i) => this.open(i));
    view.append(h("div", { class: "bar" }, h("h2", null, "Trajectories"), this.counter), this.form,
      h("div", { class: "split" }, this.table.node, this.detail));
  }

  // Take over filters and choice from an address; "" where it says nothing.
  apply(filter, i) {
    this.filter = { ...NO_FILTER, ...filter };
    this.drawForm();
    this.refresh(i);
  }

  drawForm() {
    this.form.replaceChildren(filterForm(this.data, this.trajectories, this.filter, (filter, isReset) => {
      Object.assign(this.filter, filter);
      if (isReset) this.drawForm();
      this.refresh(this.current);
      this.tell();
    }));
  }

  refresh(i) {
    const rows = matching(this.trajectories, this.filter);
    this.counter.textContent = `${count(rows.length)} of ${count(this.trajectories.length)}`;
    const chosen = rows.includes(i) ? i : rows[0] ?? -1;
    this.table.show(rows, chosen);
    this.draw(chosen);
  }

  open(i) {
    this.draw(i);
    this.tell();
  }

  draw(i) {
    if (i === this.current && i >= 0) return;
    this.current = i;
    if (i < 0) {
      this.detail.replaceChildren(h("p", { class: "muted" }, "No trajectory fits these filters."));
      return;
    }
    drawTrajectory(this.detail, i, this.data, this.trajectories, this).catch(showProblem);
  }

  tell() {
    const t = this.trajectories;
    const said = Object.entries(this.filter).filter(([name, value]) => value !== NO_FILTER[name]);
    if (this.current >= 0) said.push(["at", `${t.step[this.current]}/${t.rollout[this.current]}/${t.taskId(this.current)}`]);
    this.onChange(new URLSearchParams(said));
  }
}
