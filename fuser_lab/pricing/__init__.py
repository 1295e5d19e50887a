"""What each rule of nvFuser costs: the plan of a fusion beside the one without the rule."""
