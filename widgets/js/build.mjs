// Bundles the modules of this folder into the scripts of the package: node build.mjs, or node build.mjs --check.
// A bundle begins with a digest of its modules, by which a test without Node detects a stale one.

import { createHash } from "node:crypto";
import { readFileSync, readdirSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const HERE = fileURLToPath(new URL(".", import.meta.url));
const INTO = fileURLToPath(new URL("../fuser_lab_widgets/static/", import.meta.url));
const BUNDLES = { widget: "explorer.js", report: "report.js", map: "map.js", play: "play.js" };

function digest() {
  const names = readdirSync(HERE, { recursive: true }).filter((name) => /\.m?js$/.test(name) && !name.startsWith("node_modules"));
  const hash = createHash("sha256");
  for (const name of [...names, "package-lock.json"].map((one) => one.replaceAll("\\", "/")).sort()) hash.update(`${name}\0`).update(readFileSync(HERE + name)).update("\0");
  return hash.digest("hex");
}

const banner = { js: `// sources ${digest()}` };
const stale = [];
for (const [entry, output] of Object.entries(BUNDLES)) {
  const options = { entryPoints: [`${HERE}${entry}.js`], bundle: true, format: "esm", minify: true, target: "es2022", charset: "utf8", legalComments: "none", banner, write: false };
  const { outputFiles: [{ text }] } = await build(options);
  if (!process.argv.includes("--check")) writeFileSync(INTO + output, text);
  else if (readFileSync(INTO + output, "utf8") !== text) stale.push(output);
}
if (stale.length) {
  console.error(`${stale.join(", ")} differ from the modules in widgets/js: run make scripts and commit the result.`);
  process.exitCode = 1;
}
