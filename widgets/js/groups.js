// The groups that result from decisions.

/** The groups that result from decisions, as a map from each name to its group. */
export function groupsAfter(rows) {
  const homes = new Map();
  const join = (names) => {
    const group = new Set(names.flatMap((n) => [...(homes.get(n) || [n])]));
    for (const n of group) homes.set(n, group);
  };
  for (const { ok, kind, groups } of rows) {
    if (!ok) continue;
    if (kind === "merge") join(groups.flat());
    else if (kind === "replicate") {
      // Each reader gets a copy, so a copied op does not make one group of its readers.
      const [copied, readers] = groups;
      if (!homes.has(readers[0])) join(readers);
      for (const n of copied) if (!homes.has(n)) homes.set(n, homes.get(readers[0]));
    }
    else if (kind === "partition" || kind === "rewrite" || kind === "store") {
      if (kind === "partition") homes.clear();
      for (const group of groups) for (const n of group) homes.delete(n);
      if (kind !== "rewrite") groups.forEach(join);
    }
  }
  return homes;
}
