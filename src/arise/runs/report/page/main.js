// Views, addresses, theme.

const VIEWS = [["overview", "Overview"], ["pool", "Pool"], ["sampling", "Sampling"], ["trajectories", "Trajectories"], ["time", "Time and cost"]];
const THEMES = ["auto", "light", "dark"];

function showProblem(error) {
  const place = byId("problem");
  place.hidden = false;
  place.textContent = error.message;
}

function remembered(key, value) {
  // Browsers may refuse storage to a local file.
  try {
    if (value === undefined) return localStorage.getItem(key);
    localStorage.setItem(key, value);
  } catch { /* the choice then lasts until the page is closed */ }
  return null;
}

function setUpTheme() {
  const button = byId("theme");
  const set = (name) => {
    document.documentElement.dataset.theme = name;
    button.textContent = { auto: "Theme: auto", light: "Theme: light", dark: "Theme: dark" }[name];
    remembered("arise-report-theme", name);
  };
  const saved = remembered("arise-report-theme");
  set(THEMES.includes(saved) ? saved : "auto");
  button.addEventListener("click", () =>
    set(THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % THEMES.length]));
}

class Page {
  constructor(data, index) {
    this.data = data;
    this.trajectories = new Trajectories(index);
    this.drawn = new Set();
    this.browser = null;
    this.told = null;
    byId("name").textContent = visible(data.run.experiment);
    byId("state").textContent = `${data.run.state}, step ${data.steps.at(-1)}${data.run.max_steps ? ` of ${data.run.max_steps}` : ""} · ${visible(data.run.path)}`;
    byId("tabs").append(...VIEWS.map(([name, text], n) => h("button", {
      type: "button", role: "tab", id: `tab-${name}`, "aria-controls": `view-${name}`, title: `key ${n + 1}`,
      onclick: () => this.goBack(name), onkeydown: (event) => this.onTabKey(event, n),
    }, text)));
    window.addEventListener("hashchange", () => this.follow());
    document.addEventListener("keydown", (event) => this.onKey(event));
    this.follow();
  }

  go(name, parameters) {
    const query = parameters?.toString() ?? "";
    location.hash = query ? `${name}?${query}` : name;
  }

  // To a view as it was left.
  goBack(name) {
    this.go(name, name === "trajectories" ? this.told : null);
  }

  // Show what the address says.
  follow() {
    const [wanted, query] = location.hash.slice(1).split(/\?(.*)/s);
    const name = VIEWS.some(([known]) => known === wanted) ? wanted : "overview";
    for (const [other] of VIEWS) {
      byId(`view-${other}`).hidden = other !== name;
      byId(`tab-${other}`).setAttribute("aria-selected", String(other === name));
      byId(`tab-${other}`).tabIndex = other === name ? 0 : -1;
    }
    if (!this.drawn.has(name)) {
      this.drawn.add(name);
      this.draw(name, byId(`view-${name}`));
    }
    if (name === "trajectories" && (query ?? "") !== this.told) this.applyQuery(query ?? "");
  }

  applyQuery(query) {
    this.told = query;
    const { at, ...filter } = Object.fromEntries(new URLSearchParams(query));
    const [step, rollout, ...task] = (at ?? "").split("/");
    const known = Object.fromEntries(Object.entries(filter).filter(([name]) => name in NO_FILTER));
    this.browser.apply(known, at ? this.trajectories.find(Number(step), task.join("/"), Number(rollout)) : -1);
  }

  draw(name, view) {
    const openTrajectory = (step, task, rollout) => this.go("trajectories", new URLSearchParams([["at", `${step}/${rollout}/${task}`]]));
    const openTrajectories = (filter) => this.go("trajectories", new URLSearchParams(filter));
    if (name === "overview") drawOverview(view, this.data, this.trajectories);
    if (name === "pool") drawPool(view, this.data, openTrajectory);
    if (name === "sampling") drawSampling(view, this.data, this.trajectories, openTrajectories);
    if (name === "time") drawTime(view, this.data, this.trajectories);
    if (name === "trajectories") {
      this.browser = new Browser(view, this.data, this.trajectories, (parameters) => {
        this.told = parameters.toString();
        history.replaceState(null, "", `#trajectories${this.told ? `?${this.told}` : ""}`);
      });
    }
  }

  onTabKey(event, n) {
    const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (move === undefined) return;
    event.preventDefault();
    const [name] = VIEWS[(n + move + VIEWS.length) % VIEWS.length];
    this.goBack(name);
    byId(`tab-${name}`).focus();
  }

  onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, select, textarea")) return;
    if (event.key === "/") {
      event.preventDefault();
      this.goBack("trajectories");
      this.follow();
      byId("view-trajectories").querySelector("input[name=task]").focus();
    }
    const view = VIEWS[Number(event.key) - 1];
    if (view !== undefined) this.goBack(view[0]);
  }
}

setUpTheme();
Promise.all([block("overview"), block("index")])
  .then(([data, index]) => { window.report = new Page(data, index); document.documentElement.dataset.ready = ""; })
  .catch(showProblem);
