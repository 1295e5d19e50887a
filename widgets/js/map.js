// The map of a model in the page: Python draws, this sends what the user clicks and keys, and keeps the focus.

const PARTS = ["bar", "picture", "side", "below"];
const STEPS = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 };

function render({ model, el }) {
  const root = document.createElement("div");
  root.className = "fl-explorer fl-modelmap";
  const parts = {};
  for (const name of PARTS) {
    parts[name] = document.createElement("div");
    parts[name].className = `fm-${name}`;
    root.append(parts[name]);
  }
  parts.picture.tabIndex = -1;
  const status = document.createElement("p");
  status.className = "fm-status fx-note";
  status.setAttribute("role", "status");
  root.append(status);
  el.append(root);
  const shown = {};
  let zoom = 1;
  let wanted = "";

  const boxes = () => [...parts.picture.querySelectorAll("[data-box]")];
  const box = (id) => boxes().find((one) => one.dataset.box === id);
  const focusBox = (one) => {
    for (const other of boxes()) other.setAttribute("tabindex", other === one ? "0" : "-1");
    one.focus({ preventScroll: true });
    one.querySelector(".fl-name").scrollIntoView({ block: "nearest", inline: "nearest" });
  };
  const scale = () => {
    const svg = parts.picture.querySelector("svg");
    if (!svg) return;
    const { width, height } = svg.viewBox.baseVal;
    const fit = Math.min(1, (parts.picture.clientWidth - 4) / width || 1);
    svg.setAttribute("width", width * Math.max(fit, 0.45) * zoom);
    svg.setAttribute("height", height * Math.max(fit, 0.45) * zoom);
  };
  const draw = () => {
    const view = model.get("view");
    for (const name of PARTS) {
      if (shown[name] === view[name]) continue;
      shown[name] = view[name];
      parts[name].innerHTML = view[name];
    }
    status.textContent = view.status;
    for (const one of boxes()) one.classList.toggle("fm-selected", one.dataset.box === view.selected);
    scale();
    const first = box(view.selected) || boxes()[0];
    if (first) first.setAttribute("tabindex", "0");
    if (wanted && first) focusBox(box(wanted) || first);
    wanted = "";
    root.dispatchEvent(new CustomEvent("fuser-lab-drawn", { bubbles: true }));
  };
  const send = (message) => model.send(message);
  const press = (one) => {
    wanted = one.dataset.box;
    send({ type: "box", id: wanted });
  };

  root.addEventListener("click", (event) => {
    const button = event.target.closest("[data-send]");
    if (button) return send(JSON.parse(button.dataset.send));
    const zoomed = event.target.closest("[data-zoom]");
    if (zoomed) {
      zoom = Number(zoomed.dataset.zoom) ? zoom * Number(zoomed.dataset.zoom) : 1;
      return scale();
    }
    const one = event.target.closest("[data-box]");
    if (one) press(one);
  });
  root.addEventListener("keydown", (event) => {
    event.stopPropagation();
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const row = event.target.closest("tr[data-send]");
    const one = event.target.closest("[data-box]");
    if (row && (event.key === "Enter" || event.key === " ")) send(JSON.parse(row.dataset.send));
    else if (one && (event.key === "Enter" || event.key === " ")) press(one);
    else if (one && event.key in STEPS) {
      const every = boxes();
      focusBox(every[Math.min(Math.max(every.indexOf(one) + STEPS[event.key], 0), every.length - 1)]);
    } else if (one && event.key === "Escape") {
      wanted = one.dataset.box;
      send({ type: "out", id: wanted });
    } else return;
    event.preventDefault();
  });
  const resized = new ResizeObserver(scale);
  resized.observe(parts.picture);
  model.on("change:view", draw);
  draw();
  return () => {
    resized.disconnect();
    model.off("change:view", draw);
  };
}

export default { render };
