"""Who can schedule a candidate, and how a segment is looped."""
