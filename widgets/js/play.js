// The page of a player in a notebook, with the steps of a kernel in the page.

import { unpacked } from "./link.js";
import { Player } from "./player.js";

unpacked(document.getElementById("fl-data").textContent).then((text) => {
  const place = document.getElementById("fl-live");
  place.classList.add("fl-explorer");
  place.append(new Player(JSON.parse(text)).element);
});
