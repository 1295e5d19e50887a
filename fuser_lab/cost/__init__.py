"""What segments cost, on which device, and how a scheduler answers."""
