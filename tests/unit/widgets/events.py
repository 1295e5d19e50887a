"""Events as the page sends them."""


def send(explorer, kind, **data):
    """Send an event to an explorer, and return what its status line answers."""
    explorer.events = [{"n": explorer.acked + 1, "type": kind, **data}]
    return explorer.status["text"]
