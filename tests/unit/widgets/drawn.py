"""The nodes and edges of an explorer's picture as rows: those outside the boxes, and those in them."""


def nodes(explorer, scene=None):
    """Return id, kind, segment, names, text, width, height, x, y, classes, hue and shape of each node."""
    scene, rows, parts = _of(explorer, scene)

    def made(row, at, x=0, y=0):
        name, kind, names, text, w, h, left, top, css, shape = row
        hue = None if at is None else at % scene["hues"]
        return [name, kind, at, names, text, w, h, x + left, y + top, css, hue, shape]

    return [
        *(made(rows[row], segment) for row, segment in scene["nodes"]),
        *(made(row, segment, x, y) for segment, x, y, part in _boxes(scene, rows, parts) for row in part[0]),
    ]


def edges(explorer, scene=None):
    """Return id, kind, source, target, tensor, both segments, x, y, classes, hue, shape and label of each edge."""
    scene, rows, parts = _of(explorer, scene)

    def made(row, a, b, x=0, y=0):
        name, source, target, tensor, *_, kind, left, top, css, shape, label = row
        hue = a % scene["hues"] if kind == "inside" else None
        return [name, kind, source, target, tensor, a, b, x + left, y + top, css, hue, shape, label]

    return [
        *(made(rows[row], a, b) for row, a, b in scene["wires"]),
        *(made(row, segment, segment, x, y) for segment, x, y, part in _boxes(scene, rows, parts) for row in part[1]),
    ]


def shapes(explorer, scene=None):
    """Return the numbers of all shapes in the picture."""
    scene, rows, _ = _of(explorer, scene)
    made = {shape for _, _, row, _ in scene["boxes"] for shape in (rows[row][5], rows[row][7])}
    made |= {edge[-1][-1] for edge in edges(explorer, scene) if edge[-1]}
    return made | {node[-1] for node in nodes(explorer, scene)} | {edge[-2] for edge in edges(explorer, scene)}


def patterns(explorer):
    """Return the markup of the patterns of boxes."""
    chunks = explorer._picture.pieces.stock.chunks
    return [shape for chunk in chunks for shape in chunk["shapes"]][explorer.scene["patterns"]]


def _of(explorer, scene):
    scene = explorer.scene if scene is None else scene
    chunks = explorer._picture.pieces.stock.chunks[: scene["chunks"][1] - scene["chunks"][0]]
    return scene, *([piece for chunk in chunks for piece in chunk[kind]] for kind in ("rows", "parts"))


def _boxes(scene, rows, parts):
    return [(index, *rows[row][2:4], parts[part]) for index, _, row, part in scene["boxes"] if part is not None]
