// The picture: pieces that stay in the page if an edit only moves them.

const LAYERS = ["boxes", "edges", "headers", "labels", "nodes"]; // lowest first, so that text is never hidden
const [BOXES, EDGES, HEADERS, , NODES] = LAYERS.keys();

export class Picture {
  constructor(canvas) {
    this.name = "fl" + Math.random().toString(36).slice(2); // ids must be unique in a page, which loads this module once per widget
    const groups = LAYERS.map((layer) => `<g class="fl-${layer}"></g>`).join("");
    canvas.innerHTML = `<svg class="fl-svg" role="graphics-document" aria-labelledby="${this.name}-t ${this.name}-d"><title id="${this.name}-t"></title><desc id="${this.name}-d"></desc><defs></defs>${groups}</svg>`;
    this.svg = canvas.firstChild;
    [this.title, this.about, this.defs, ...this.groups] = this.svg.children;
    this.placed = LAYERS.map(() => new Map());
  }

  draw({ title, about }, patterns) {
    this.title.textContent = title;
    this.about.textContent = about;
    if (this.patterns === patterns) return;
    this.defs.innerHTML = this.patterns = patterns; // this and the shapes are made in Python, which escapes every name
    for (const one of this.defs.children) one.id = this.name + one.id;
  }

  /** Put these pieces of each layer into the page, and remove all others. */
  hold(pieces, shapes) {
    LAYERS.forEach((layer, n) => this.put(n, pieces[layer], shapes));
  }

  /** The items of a layer, by id. */
  layer(name) {
    return this.placed[LAYERS.indexOf(name)];
  }

  /** The elements of something, in all layers. */
  elements(id) {
    const number = id.startsWith("segment:") ? Number(id.slice(8)) : null;
    return this.placed.flatMap((layer) => layer.get(id) || layer.get(number) || []).map((one) => one.element);
  }

  /** Show these pieces in a layer: existing ones with the same shape are moved, only the others are created. */
  put(layer, pieces, shapes) {
    const [group, old, placed, spare] = [this.groups[layer], this.placed[layer], new Map(), new Map()];
    for (const { id, shape: number } of pieces) {
      const one = old.get(id);
      if (!one || (one.shape !== number && !this.refill(one, layer, number, shapes))) continue;
      placed.set(id, one);
      old.delete(id);
    }
    for (const one of old.values()) spare.has(one.shape) ? spare.get(one.shape).push(one) : spare.set(one.shape, [one]);
    const made = pieces.filter(({ id, shape: number }) => {
      const one = placed.get(id) || spare.get(number)?.pop();
      if (one) placed.set(id, one);
      return !one;
    });
    for (const ones of spare.values()) for (const one of ones) one.element.remove();
    const role = layer === EDGES || layer === NODES ? `role="button" tabindex="-1"` : "";
    const holder = group.cloneNode();
    holder.innerHTML = made.map((piece) => `<g ${role}>${shapes[piece.shape]}</g>`).join("");
    [...holder.children].forEach((element, n) => {
      element.remove();
      this.finish(element, layer);
      placed.set(made[n].id, { element, shape: made[n].shape, hue: null });
    });
    let next = null;
    for (const { id, x, y, css, hue, look } of [...pieces].reverse()) {
      const one = placed.get(id);
      const { element } = one;
      if (one.x !== x || one.y !== y) element.setAttribute("transform", `translate(${x} ${y})`);
      if (element.getAttribute("class") !== css) element.setAttribute("class", css);
      if (one.id !== id && look == null) element.dataset.id = id;
      else if (one.id !== id) this.number(element, id, look);
      if (one.hue !== hue) for (const part of element.querySelectorAll("rect, path")) part.classList.replace(`fl-h${one.hue}`, `fl-h${hue}`) || part.classList.add(`fl-h${hue}`);
      Object.assign(one, { id, x, y, hue, from: one.x == null ? null : [one.x, one.y] });
      if (!element.parentNode) group.insertBefore(element, next); // kept items are never reinserted, because the browser would lay them out again
      next = element;
    }
    this.placed[layer] = placed;
  }

  /** Draw another shape in the element that has the focus, which would lose it if it were replaced. */
  refill(one, layer, shape, shapes) {
    if (one.element !== document.activeElement) return false;
    one.element.innerHTML = shapes[shape];
    this.finish(one.element, layer);
    Object.assign(one, { shape, hue: null, words: null });
    return true;
  }

  /** Draw boxes above the wires, which hides what is in them, or below. */
  cover(boxes) {
    if (this.covers === boxes) return;
    this.covers = boxes;
    const [below, above] = boxes ? [EDGES, BOXES] : [BOXES, EDGES];
    this.svg.insertBefore(this.groups[below], this.groups[HEADERS]);
    this.svg.insertBefore(this.groups[above], this.groups[HEADERS]);
  }

  /** Write the number of a segment, and its pattern, where the shape of its box or header has the sign #. */
  number(element, id, look) {
    element.dataset.id = `segment:${id}`;
    for (const part of element.querySelectorAll("title, .fl-chip-text, .fl-spine")) {
      const { dataset } = part;
      if (part.matches(".fl-spine")) part.setAttribute("fill", (dataset.form ??= part.getAttribute("fill")).replace("#-p#", `#${this.name}-p${look}`));
      else part.textContent = (dataset.form ??= part.textContent).replace("#", id);
    }
  }

  finish(element, layer) {
    if (layer !== EDGES) return;
    const hit = element.firstChild.cloneNode(); // wide and invisible, for the pointer
    hit.setAttribute("class", "fl-hit");
    element.append(hit);
  }
}
