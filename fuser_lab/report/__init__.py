"""Static views of plans, logs and timings: text, SVG and HTML; they need no GPU, notebook or script."""
