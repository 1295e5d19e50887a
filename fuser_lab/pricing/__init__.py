"""What each rule of nvFuser costs: the plan of a fusion compared with the plan without the rule."""
