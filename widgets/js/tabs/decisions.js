// The view of the decisions, which keep their place in the list while another view is open.

export class DecisionsTab {
  constructor(explorer) {
    this.explorer = explorer;
  }

  draw(panel) {
    const { decisions } = this.explorer;
    decisions.load();
    return panel.firstChild === decisions.element ? null : [decisions.element];
  }
}
