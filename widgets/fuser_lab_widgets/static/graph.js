// The picture: pieces that stay in the page while an edit only moves them, and what the explorer does with them.

const LAYERS = ["boxes", "edges", "headers", "labels", "nodes"]; // the lowest first, so that nothing hides text

class Picture {
  constructor(canvas) {
    this.name = "fl" + Math.random().toString(36).slice(2); // ids do not repeat in a page, which loads this module once for each widget
    const groups = LAYERS.map((layer) => `<g class="fl-${layer}"></g>`).join("");
    canvas.innerHTML = `<svg class="fl-svg" role="graphics-document" aria-labelledby="${this.name}-t ${this.name}-d"><title id="${this.name}-t"></title><desc id="${this.name}-d"></desc><defs></defs>${groups}</svg>`;
    this.svg = canvas.firstChild;
    [this.title, this.about, this.defs, ...this.groups] = this.svg.children;
    this.placed = LAYERS.map(() => new Map());
  }

  draw(scene, shape) {
    this.title.textContent = scene.title;
    this.about.textContent = scene.about;
    if (this.patterns !== scene.patterns) {
      this.defs.innerHTML = this.patterns = scene.patterns; // this and the shapes are made in Python, which escapes every name
      for (const one of this.defs.children) one.id = this.name + one.id;
    }
    const centres = new Map(scene.nodes.map((node) => [node[0], node.slice(-5)]));
    const length = ([, , source, target]) => [0, 1].reduce((sum, axis) => sum + Math.abs(centres.get(source)[axis] - centres.get(target)[axis]), 0);
    const edges = scene.edges.map((edge) => [length(edge), edge]).sort((a, b) => b[0] - a[0]).map(([, edge]) => edge); // short ones have the least to click
    LAYERS.forEach((layer, n) => this.put(n, n === 1 ? edges : scene[layer], shape));
  }

  /** Show these pieces in a layer: those whose shape is there already are moved, only the others are made. */
  put(layer, pieces, shape) {
    const [group, old, placed, spare] = [this.groups[layer], this.placed[layer], new Map(), new Map()];
    for (const piece of pieces) {
      const one = old.get(piece[0]);
      if (one?.shape !== piece.at(-1)) continue;
      placed.set(piece[0], one);
      old.delete(piece[0]);
    }
    for (const one of old.values()) spare.set(one.shape, [...(spare.get(one.shape) || []), one]);
    const made = pieces.filter((piece) => {
      const one = placed.get(piece[0]) || spare.get(piece.at(-1))?.pop();
      if (one) placed.set(piece[0], one);
      return !one;
    });
    for (const one of [...spare.values()].flat()) one.element.remove();
    const role = layer === 1 || layer === 4 ? `role="button" tabindex="-1"` : "";
    const holder = group.cloneNode();
    holder.innerHTML = made.map((piece) => `<g ${role}>${shape(piece.at(-1))}</g>`).join("");
    [...holder.children].forEach((element, n) => {
      element.remove();
      this.finish(element, layer);
      placed.set(made[n][0], { element, shape: made[n].at(-1), hue: null });
    });
    let next = null;
    for (const piece of [...pieces].reverse()) {
      const [x, y, css, hue] = piece.slice(-5);
      const one = placed.get(piece[0]);
      const { element } = one;
      if (one.x !== x || one.y !== y) element.setAttribute("transform", `translate(${x} ${y})`);
      if (element.getAttribute("class") !== css) element.setAttribute("class", css);
      element.dataset.id = typeof piece[0] === "number" ? `segment:${piece[0]}` : piece[0];
      if (one.hue !== hue) for (const part of element.querySelectorAll("rect, path")) part.classList.replace(`fl-h${one.hue}`, `fl-h${hue}`) || part.classList.add(`fl-h${hue}`);
      Object.assign(one, { x, y, hue, from: one.x == null ? null : [one.x, one.y] });
      if (!element.parentNode) group.insertBefore(element, next); // what is kept is never put elsewhere: the page would lay it out again
      next = element;
    }
    this.placed[layer] = placed;
  }

  finish(element, layer) {
    if (layer === 0) element.lastChild.setAttribute("fill", `url(#${this.name}${element.lastChild.getAttribute("fill").slice(5)}`);
    if (layer !== 1) return;
    const hit = element.firstChild.cloneNode(); // wide and invisible, for the pointer
    hit.setAttribute("class", "fl-hit");
    element.append(hit);
  }
}

Object.assign(Explorer.prototype, {
  drawScene() {
    const scene = this.get("scene");
    if (!scene.nodes) return;
    this.showHint(null);
    const before = this.svg && this.nodes;
    const anchor = before && this.locate(this.selected);
    const focused = this.canvas.contains(document.activeElement) ? document.activeElement.dataset.id : null;
    this.picture ??= new Picture(this.canvas);
    this.picture.draw(scene, (n) => this.get(`shape${n}`));
    this.svg = this.picture.svg;
    this.edges = new Map(scene.edges.map(([id, kind, source, target, tensor, from, to, , , css]) => [id, { id, kind, source, target, tensor, from, to, hint: css.includes("hinted") }]));
    this.nodes = new Map(scene.nodes.map(([id, kind, segment, names, text, w, height, x, y, , hue]) => [id, { id, kind, segment, x, y, w, h: height, names, text, hue }]));
    this.boxes = new Map(scene.boxes.map(([index, w, height, x, y, , hue]) => [index, { x, y, w, h: height, hue }]));
    this.details[2].hidden = !scene.repeats;
    press(this.details, DETAILS.findIndex(([name]) => name === scene.detail));
    this.title.textContent = scene.title;
    this.root.setAttribute("aria-label", `Fusion explorer: ${scene.title}`);
    this.drawFacts();
    this.segment = Math.min(this.segment, scene.segments.rows.length - 1);
    this.title.title = `plan ${scene.hash}`;
    this.size = { w: scene.size[0], h: scene.size[1] };
    this.prepare();
    if (this.drawn !== scene.detail) this.fitted = true;
    this.drawn = scene.detail;
    if (this.fitted || !anchor || !this.keepInPlace(anchor)) this.fit();
    this.drawOverview();
    this.drawHeat();
    this.tellRoom();
    if (String(this.drawnRoom) === String(scene.room)) this.animate(before);
    this.drawnRoom = scene.room;
    for (const [name, ids] of Object.entries(scene.marks || {})) for (const id of ids) this.item(id)?.classList.add(`fx-${name}`);
    this.markGraph();
    this.colourEdges();
    if (this.search.value) this.find();
    if (this.step != null) this.showStep();
    if (focused && document.activeElement?.dataset.id !== focused) {
      // Focus makes the page lay out the picture: in a large one after it was shown.
      if (this.items.length > LARGE) requestAnimationFrame(() => this.focus(focused));
      else this.focus(focused);
    }
    this.drawPanel();
    this.root.dataset.rev = scene.rev;
    this.root.dispatchEvent(new CustomEvent("fuser-lab-drawn", { bubbles: true, detail: scene.rev }));
  },

  /** The numbers of the header, and what was measured of the plan that is shown. */
  drawFacts() {
    const { facts = [], hash } = this.get("scene");
    const measured = this.get("times").measured?.[hash];
    const last = measured ? [measured] : this.get("history").runnable ? [["–", "measured", "not yet: Run times it on this machine"]] : [];
    this.facts.replaceChildren(...[...facts, ...last].map(([value, name, title]) => h("span", { title }, h("b", {}, value), ` ${name}`)));
  },

  /** Make edges and nodes reachable by keyboard and named for screen readers. */
  prepare() {
    const [edges, nodes] = [1, 4].map((layer) => this.picture.placed[layer]);
    this.items = [...edges.values(), ...nodes.values()].map((one) => one.element);
    this.byId = new Map(this.items.map((item) => [item.dataset.id, item]));
    for (const [id, { element }] of edges) {
      const { tensor, kind, from, to, hint } = this.edges.get(id);
      element.setAttribute("aria-label", (hint ? "annotated " : "") + tensor + ({ inside: ` inside segment ${from}`, boundary: ` from segment ${from} to segment ${to}` }[kind] || `, a fusion ${kind}`));
      element.removeAttribute("aria-description");
    }
    if (!this.svg.querySelector("[tabindex='0']")) nodes.values().next().value?.element.setAttribute("tabindex", "0");
  },

  /** The middle of something in the picture; asking the page for its box would make it lay out everything. */
  locate(id) {
    const edge = this.edges?.get(id);
    const index = id?.startsWith("segment:") ? Number(id.slice(8)) : null; // its box, its node, or the block that it is in
    const ends = edge ? [this.nodes.get(edge.source), this.nodes.get(edge.target)] : [...this.nodes.values()].filter((n) => n.id === id || n.segment === (index ?? -1));
    if (!ends.length) return null;
    const mean = (axis) => ends.reduce((sum, n) => sum + n[axis], 0) / ends.length;
    return { x: mean("x"), y: mean("y") };
  },

  /** Let things glide from where they were, unless the user asked for less motion. */
  animate(before) {
    if (!before || matchMedia("(prefers-reduced-motion: reduce)").matches || this.items.length > LARGE) return;
    this.canvas.classList.add("fx-gliding"); // what glides past takes no click that is meant for an edge
    clearTimeout(this.gliding);
    this.gliding = setTimeout(() => this.canvas.classList.remove("fx-gliding"), GLIDE);
    for (const layer of this.picture.placed) {
      for (const [id, { element, from, x, y }] of layer) {
        const old = from || (before.has(id) && [before.get(id).x, before.get(id).y]);
        if (!old) element.animate([{ opacity: 0 }, {}], { duration: GLIDE, easing: "ease-in" });
        else if (Math.abs(old[0] - x) + Math.abs(old[1] - y) > 1) {
          element.animate([{ transform: `translate(${old[0] - x}px,${old[1] - y}px)` }, { transform: "translate(0px,0px)" }], { duration: GLIDE, easing: "ease-out", composite: "add" });
        }
      }
    }
  },

  item(id) {
    return this.byId?.get(id);
  },
});
