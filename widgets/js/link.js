// Permalinks: the plan and the view as the fragment of a report's address.
//
// A report shows the plans that it contains. For any other plan, the link contains its Python code, compressed.

const LOOKED_AT = ["detail", "select", "tab", "step"];

/** The fragment for a plan, given by its hash and its code, and for the view. */
export async function fragment({ plan, code, ...state }) {
  const looked = LOOKED_AT.filter((name) => state[name] != null && state[name] !== "").map((name) => [name, state[name]]);
  return `#${new URLSearchParams([["plan", plan], ...looked, ["code", await packed(code)]])}`;
}

/** The contents of a fragment; empty if it is not a link. */
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

/** The text in a link or a page, in base64 with either alphabet. */
export async function unpacked(text) {
  const bytes = Uint8Array.from(atob(text.trim().replaceAll("-", "+").replaceAll("_", "/")), (c) => c.charCodeAt(0));
  return new TextDecoder().decode(await through(new DecompressionStream("deflate"), bytes));
}
