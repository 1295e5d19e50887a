// The picture: pieces that stay in the page if an edit only moves them.

const LAYERS = ["boxes", "edges", "headers", "labels", "nodes"]; // the lowest first, so that nothing hides text

export class Picture {
  constructor(canvas) {
    this.name = "fl" + Math.random().toString(36).slice(2); // ids must be unique in a page, which loads this module once per widget
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
    const edges = scene.edges.map((edge) => [length(edge), edge]).sort((a, b) => b[0] - a[0]).map(([, edge]) => edge); // short ones are the hardest to click
    LAYERS.forEach((layer, n) => this.put(n, layer === "edges" ? edges : scene[layer], shape));
  }

  /** The items of a layer, by id. */
  layer(name) {
    return this.placed[LAYERS.indexOf(name)];
  }

  /** Show these pieces in a layer: existing ones with the same shape are moved, only the others are created. */
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
      if (!element.parentNode) group.insertBefore(element, next); // kept items are never reinserted, because the browser would lay them out again
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
