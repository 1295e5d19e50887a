// The report: an explorer of what was written into the page.

import { Baked } from "./baked.js";
import { Explorer } from "./explorer.js";

async function unpacked(text) {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
}

unpacked(document.getElementById("fl-data").textContent).then((data) => {
  const place = document.getElementById("fl-live");
  new Explorer(new Baked(data), place);
  place.querySelector(".fx-title").setAttribute("aria-level", "1");
  document.getElementById("fl-static")?.remove();
});
