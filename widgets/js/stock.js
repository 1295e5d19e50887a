// The pieces of pictures, by the numbers with which scenes refer to them. Python sends each piece once.

/** Pieces of a chunk: `shapes` are markup, `rows` the data of drawn items, `parts` the contents of segments. */
export class Stock {
  /** `chunk(n)` returns what Python sent. */
  constructor(chunk) {
    this.chunk = chunk;
    this.begin(0);
  }

  begin(first) {
    Object.assign(this, { first, end: first, shapes: [], rows: [], parts: [], made: new Map() });
  }

  /** Read the chunks of a scene that have not been read yet. */
  take([first, end]) {
    if (first !== this.first) this.begin(first);
    for (; this.end < end; this.end++) {
      const { shapes, rows, parts } = this.chunk(this.end);
      for (const shape of shapes) this.shapes.push(shape);
      for (const row of rows) this.rows.push(row);
      for (const part of parts) this.parts.push(new Part(...part));
    }
  }

  /** A row as a node or an edge outside all segments. */
  node(row) {
    return this.read(row, node);
  }

  wire(row) {
    return this.read(row, wire);
  }

  read(row, make) {
    if (!this.made.has(row)) this.made.set(row, make(this.rows[row]));
    return this.made.get(row);
  }
}

/** An edge, from its row. */
function wire([id, source, target, tensor, left, top, right, bottom, kind, x, y, css, shape, label]) {
  return { id, source, target, tensor, left, top, right, bottom, kind, x, y, css, hue: null, shape, label, hint: css.includes("hinted") };
}

/** A node, from its row. */
function node([id, kind, names, text, w, h, x, y, css, shape]) {
  return { id, kind, names, text, w, h, x, y, css, hue: null, shape };
}

/** The ops and edges of a segment, from the corner of its box. */
class Part {
  constructor(nodes, edges) {
    this.nodes = new Map(nodes.map((row) => [row[0], node(row)]));
    this.edges = new Map(edges.map((row) => [row[0], wire(row)]));
  }
}
