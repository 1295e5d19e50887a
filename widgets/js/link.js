// Permalinks: which plan is shown and what is looked at, as the fragment of the address of a report.
//
// A report shows the plans that it holds. For any other the link carries the Python that makes the plan, packed.

const LOOKED_AT = ["detail", "select", "tab", "step"];

/** The fragment for a plan, given by its hash and its code, and for what is looked at. */
export async function fragment({ plan, code, ...state }) {
  const looked = LOOKED_AT.filter((name) => state[name] != null && state[name] !== "").map((name) => [name, state[name]]);
  return `#${new URLSearchParams([["plan", plan], ...looked, ["code", await packed(code)]])}`;
}

/** What a fragment says; empty for any other. */
export function parsed(text) {
  const found = new URLSearchParams(text.slice(1));
  return found.has("plan") ? Object.fromEntries(found) : {};
}

async function through(stream, bytes) {
  return new Response(new Blob([bytes]).stream().pipeThrough(stream)).arrayBuffer();
}

async function packed(text) {
  const bytes = new Uint8Array(await through(new CompressionStream("deflate"), new TextEncoder().encode(text)));
  return btoa(Array.from(bytes, (one) => String.fromCharCode(one)).join("")).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

/** The text that a link or a page carries, in base64 of either alphabet. */
export async function unpacked(text) {
  const bytes = Uint8Array.from(atob(text.trim().replaceAll("-", "+").replaceAll("_", "/")), (c) => c.charCodeAt(0));
  return new TextDecoder().decode(await through(new DecompressionStream("deflate"), bytes));
}
