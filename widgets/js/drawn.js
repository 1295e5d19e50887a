// The contents of a picture as data: boxes, their contents, and what surrounds them. `Graph` decides which parts are in
// the page.

const rank = ({ kind, segment }) => ({ input: -1, output: Infinity }[kind] ?? segment);
const byRank = (a, b) => (rank(a) === rank(b) ? 0 : rank(a) - rank(b));
const length = ({ left, top, right, bottom }) => Math.max(right, -left) + Math.max(bottom, -top);
const byLength = (a, b) => length(b) - length(a); // short edges on top: they have the smallest area to click

/** The pieces of a scene, taken from a stock. Those inside segments are created on first use. */
export class Drawn {
  constructor({ boxes, nodes, wires, hues }, stock) {
    const { rows, parts } = stock;
    this.boxes = new Map(boxes.map(([id, look, row, part]) => {
      const [w, h, x, y, css, shape, headCss, headShape] = rows[row];
      return [id, { id, look, hue: id % hues, w, h, x, y, css, shape, headCss, headShape, part: parts[part], made: new Map() }];
    }));
    this.free = new Map(nodes.map(([row, segment]) => {
      const one = stock.node(row);
      return [one.id, { ...one, segment, hue: segment == null ? null : segment % hues }];
    }));
    this.wires = new Map(wires.map(([row, from, to]) => {
      const one = stock.wire(row);
      return [one.id, { one, from, to }];
    }));
  }

  /** The middle of the topmost box, from the left; undefined without boxes. */
  get start() {
    const boxes = [...this.boxes.values()];
    const first = boxes.reduce((top, box) => (box.y < top.y ? box : top), boxes[0]);
    return first && first.x + first.w / 2;
  }

  /** The number of nodes and edges. */
  get count() {
    let inside = 0;
    for (const { part } of this.boxes.values()) inside += part ? part.nodes.size + part.edges.size : 0;
    return this.free.size + this.wires.size + inside;
  }

  /** The box around each node and edge that is in one. */
  get homes() {
    if (!this.known) {
      this.known = new Map();
      for (const box of this.boxes.values()) if (box.part) for (const layer of [box.part.nodes, box.part.edges]) for (const id of layer.keys()) this.known.set(id, box);
    }
    return this.known;
  }

  node(id) {
    const box = this.free.has(id) ? null : this.homes.get(id);
    return box?.part.nodes.has(id) ? op(box, id) : this.free.get(id);
  }

  edge(id) {
    const box = this.wires.has(id) ? null : this.homes.get(id);
    return box?.part.edges.has(id) ? within(box, id) : this.between(id);
  }

  /** An edge outside all boxes. */
  between(id) {
    const wire = this.wires.get(id);
    if (wire) wire.made ??= { ...wire.one, from: wire.from, to: wire.to };
    return wire?.made;
  }

  /** All nodes, in the order of the keyboard. */
  get nodes() {
    this.everyNode ??= [...this.free.values(), ...this.inside("nodes", op)].sort(byRank);
    return this.everyNode;
  }

  /** All edges, in the order of the keyboard. */
  get edges() {
    this.everyEdge ??= [...[...this.wires.keys()].map((id) => this.between(id)), ...this.inside("edges", within)].sort(byLength);
    return this.everyEdge;
  }

  inside(layer, made) {
    return [...this.boxes.values()].flatMap((box) => (box.part ? [...box.part[layer].keys()].map((id) => made(box, id)) : []));
  }

  /** The pieces of each layer in a part of the picture (null: everywhere), and the `kept` ones everywhere.
   *  Without `ops`, boxes represent their contents; without `labels`, edges have none. */
  in(view, { ops = true, labels = true, kept = new Set() } = {}) {
    const meets = (left, top, right, bottom) => !view || (right >= view.x && left <= view.x + view.w && bottom >= view.y && top <= view.y + view.h);
    const meetsNode = ({ x, y, w, h }, left = 0, top = 0) => meets(left + x - w / 2, top + y - h / 2, left + x + w / 2, top + y + h / 2);
    const meetsEdge = (e, x = 0, y = 0) => meets(x + e.x + e.left, y + e.y + e.top, x + e.x + e.right, y + e.y + e.bottom);
    const boxes = [...this.boxes.values()].filter(({ x, y, w, h }) => meets(x, y, x + w, y + h));
    const nodes = new Map();
    const edges = new Map();
    const tags = [];
    for (const one of this.free.values()) if (meetsNode(one)) nodes.set(one.id, one);
    for (const { one } of this.wires.values()) {
      if (meetsEdge(one)) edges.set(one.id, this.between(one.id));
      const [x, y, css, shape] = (labels && one.label) || [];
      if (css && meets(x, y, x, y)) tags.push({ id: one.id, x, y, css, hue: null, shape });
    }
    for (const box of ops ? boxes : []) {
      if (!box.part) continue;
      for (const one of box.part.nodes.values()) if (meetsNode(one, box.x, box.y)) nodes.set(one.id, op(box, one.id));
      for (const one of box.part.edges.values()) if (meetsEdge(one, box.x, box.y)) edges.set(one.id, within(box, one.id));
    }
    for (const id of kept) {
      const [one, edge] = [this.node(id), this.edge(id)];
      if (one) nodes.set(id, one);
      if (edge) edges.set(id, edge);
    }
    return {
      boxes,
      headers: boxes.map(({ id, x, y, look, hue, headCss, headShape }) => ({ id, x, y, look, hue, css: headCss, shape: headShape })),
      labels: tags,
      nodes: [...nodes.values()].sort(byRank),
      edges: [...edges.values()].sort(byLength),
    };
  }
}

/** A node in a box, in the picture. */
function op(box, id) {
  return made(box, id, box.part.nodes.get(id), { segment: box.id });
}

/** An edge in a box, in the picture. */
function within(box, id) {
  return made(box, id, box.part.edges.get(id), { from: box.id, to: box.id });
}

function made(box, id, piece, more) {
  if (!box.made.has(id)) box.made.set(id, { ...piece, ...more, x: box.x + piece.x, y: box.y + piece.y, hue: box.hue });
  return box.made.get(id);
}
