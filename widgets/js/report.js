// The report: an explorer of the data in the page, at the view that its address names.

import { Baked } from "./baked.js";
import { Explorer } from "./explorer.js";
import { parsed, unpacked } from "./link.js";

async function show(packed) {
  const data = JSON.parse(await unpacked(packed));
  const link = parsed(location.hash);
  const model = new Baked(data, link);
  const place = document.getElementById("fl-live");
  const explorer = new Explorer(model, place);
  place.querySelector(".fx-title").setAttribute("aria-level", "1");
  document.getElementById("fl-static")?.remove();
  if (!link.plan) return;
  if (model.holds(link.plan)) explorer.restore(link);
  else model.offer(await unpacked(link.code || "").catch(() => ""));
}

show(document.getElementById("fl-data").textContent);
addEventListener("hashchange", () => location.reload());
