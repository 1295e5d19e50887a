// All that a picture shows, as data: by layer and id, with where it is. What of it is in the page is decided by `Graph`.

/** Pieces of a scene; those inside segments come from its parts (`part(n)`) and stand at the corners of their boxes. */
export class Drawn {
  constructor(scene, part) {
    const free = ([id, kind, names, text, w, height, segment, x, y, css, hue, shape]) => ({ id, kind, names, text, w, h: height, segment, x, y, css, hue, shape });
    const wire = ([id, source, target, tensor, left, top, right, bottom, kind, from, to, x, y, css, hue, shape]) =>
      ({ id, source, target, tensor, left, top, right, bottom, kind, from, to, x, y, css, hue, shape, hint: css.includes("hinted") });
    this.boxes = new Map(scene.boxes.map(([index, w, height, x, y, css, hue, shape]) => [index, { id: index, w, h: height, x, y, css, hue, shape }]));
    this.headers = new Map(scene.headers.map(([index, x, y, css, hue, shape]) => [index, { id: index, x, y, css, hue, shape }]));
    this.labels = new Map(scene.labels.map(([id, x, y, css, hue, shape]) => [id, { id, x, y, css, hue, shape }]));
    const nodes = scene.nodes.map(free);
    const edges = scene.edges.map(wire);
    this.inner = new Map(); // of each segment that is drawn with its ops, these
    for (const [segment, number] of scene.insides) {
      const { x: left, y: top, hue } = this.boxes.get(segment);
      const inside = part(number);
      const ops = inside.nodes.map(([id, kind, names, text, w, height, x, y, css, shape]) => ({ id, kind, names, text, w, h: height, segment, x: left + x, y: top + y, css, hue, shape }));
      for (const [id, source, target, tensor, l, t, r, b, x, y, css, shape] of inside.edges) {
        edges.push({ id, source, target, tensor, left: l, top: t, right: r, bottom: b, kind: "inside", from: segment, to: segment, x: left + x, y: top + y, css, hue, shape, hint: css.includes("hinted") });
      }
      nodes.push(...ops);
      this.inner.set(segment, ops);
    }
    const rank = ({ kind, segment }) => ({ input: -1, output: Infinity }[kind] ?? segment);
    this.nodes = new Map(nodes.sort((a, b) => (rank(a) === rank(b) ? 0 : rank(a) - rank(b))).map((node) => [node.id, node]));
    const length = ({ left, top, right, bottom }) => Math.max(right, -left) + Math.max(bottom, -top);
    this.edges = new Map(edges.sort((a, b) => length(b) - length(a)).map((edge) => [edge.id, edge])); // short ones on top: they have the least to click
    this.count = nodes.length + edges.length;
  }

  /** The pieces of each layer in a part of the picture (null: everywhere), and `kept` ones wherever they are.
   *  Without `ops`, boxes stand for what is in them; without `labels`, wires have none. */
  in(view, { ops = true, labels = true, kept = new Set() } = {}) {
    const meets = (left, top, right, bottom) => !view || (right >= view.x && left <= view.x + view.w && bottom >= view.y && top <= view.y + view.h);
    const those = (all, test) => [...all.values()].filter(test);
    const boxes = those(this.boxes, ({ x, y, w, h }) => meets(x, y, x + w, y + h));
    return {
      boxes,
      headers: boxes.map(({ id }) => this.headers.get(id)),
      labels: labels ? those(this.labels, ({ x, y }) => meets(x, y, x, y)) : [],
      nodes: those(this.nodes, (n) => kept.has(n.id) || ((ops || !this.inner.has(n.segment)) && meets(n.x - n.w / 2, n.y - n.h / 2, n.x + n.w / 2, n.y + n.h / 2))),
      edges: those(this.edges, (e) => kept.has(e.id) || ((ops || e.kind !== "inside") && meets(e.x + e.left, e.y + e.top, e.x + e.right, e.y + e.bottom))),
    };
  }
}
