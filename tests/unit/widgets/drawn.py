"""The nodes and edges of an explorer's picture as rows: those of the scene, and those of its parts."""


def nodes(explorer, scene=None):
    """Return id, kind, segment, names, text, width, height, x, y, classes, hue and shape of each node."""
    return [
        *(
            [i, kind, at, names, text, w, h, *rest]
            for i, kind, names, text, w, h, at, *rest in _scene(explorer, scene)["nodes"]
        ),
        *(
            [i, kind, segment, names, text, w, h, left + x, top + y, css, hue, shape]
            for segment, left, top, hue, part in _insides(explorer, scene)
            for i, kind, names, text, w, h, x, y, css, shape in part["nodes"]
        ),
    ]


def edges(explorer, scene=None):
    """Return id, kind, source, target, tensor, both segments, x, y, classes, hue and shape of each edge."""
    return [
        *(
            [i, kind, source, target, tensor, a, b, *rest]
            for i, source, target, tensor, *_, kind, a, b, x, y, css, hue, shape in _scene(explorer, scene)["edges"]
            for rest in ([x, y, css, hue, shape],)
        ),
        *(
            [i, "inside", source, target, tensor, segment, segment, left + x, top + y, css, hue, shape]
            for segment, left, top, hue, part in _insides(explorer, scene)
            for i, source, target, tensor, *_, x, y, css, shape in part["edges"]
        ),
    ]


def _scene(explorer, scene):
    return explorer.scene if scene is None else scene


def _insides(explorer, scene):
    scene = _scene(explorer, scene)
    corners = {index: (x, y, hue) for index, _, _, x, y, _, hue, _ in scene["boxes"]}
    return [(index, *corners[index], explorer._shapes.parts[number]) for index, number in scene["insides"]]
