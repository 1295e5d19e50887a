"""Static views of plans, logs and timings: text, SVG and HTML, without a GPU, a notebook or a script."""
