"""Recording of fusions: the definition a user writes, and its forms as text."""
