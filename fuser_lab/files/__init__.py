"""Files: the only place that reads those of users, and the only place that writes JSON."""
