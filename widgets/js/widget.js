// The module that anywidget loads: an explorer for a model of the notebook.

import { Explorer } from "./explorer.js";

function render({ model, el }) {
  const view = new Explorer(model, el);
  return () => view.dispose();
}

export default { render };
