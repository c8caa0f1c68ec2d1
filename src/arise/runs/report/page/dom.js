// Elements. Every text goes in as text: nothing here, or anywhere on this page, parses HTML.

const SVG = "http://www.w3.org/2000/svg";

function h(tag, props, ...children) {
  return furnish(document.createElement(tag), props, children);
}

function svg(tag, props, ...children) {
  return furnish(document.createElementNS(SVG, tag), props, children);
}

function furnish(node, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return node;
}

function byId(id) {
  return document.getElementById(id);
}

// One of several choices as a row of buttons; arrow keys move.
function choice(label, options, current, onChange) {
  const group = h("div", { class: "choice", role: "radiogroup", "aria-label": label });
  const select = (value, focus) => {
    for (const button of group.children) {
      const isChosen = button.dataset.value === value;
      button.setAttribute("aria-checked", isChosen);
      button.tabIndex = isChosen ? 0 : -1;
      if (isChosen && focus) button.focus();
    }
  };
  const names = options.map(([value]) => value);
  for (const [value, text] of options) {
    group.append(
      h("button", {
        type: "button", role: "radio", "data-value": value,
        onclick: () => { select(value, false); onChange(value); },
        onkeydown: (event) => {
          const move = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
          if (move === undefined) return;
          event.preventDefault();
          const next = names[(names.indexOf(value) + move + names.length) % names.length];
          select(next, true);
          onChange(next);
        },
      }, text),
    );
  }
  select(current, false);
  return group;
}

// Calls `draw(width)` now and whenever the node's width changes.
function onWidth(node, draw) {
  let last = 0;
  new ResizeObserver((entries) => {
    const width = Math.floor(entries[0].contentRect.width);
    if (width === 0 || width === last) return;
    last = width;
    draw(width);
  }).observe(node);
}
