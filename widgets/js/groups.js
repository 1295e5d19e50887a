// The groups that result from decisions.

export class Groups {
  constructor(rows = []) {
    this.homes = new Map(); // the group of each name, which is a set of names
    this.copies = new Map(); // for a forwarded name, a name in each group that computes it again
    for (const row of rows) if (row.ok) this.apply(row);
  }

  apply({ kind, groups }) {
    if (kind === "merge") this.join(groups.flat());
    else if (kind === "replicate") this.copy(...groups);
    else if (kind === "partition" || kind === "rewrite" || kind === "store") {
      if (kind === "partition") this.homes.clear();
      for (const group of groups) for (const n of group) this.homes.delete(n);
      if (kind !== "rewrite") groups.forEach((group) => this.join(group));
    }
  }

  join(names) {
    const group = new Set(names.flatMap((n) => [...(this.homes.get(n) || [n])]));
    for (const n of group) if (!this.copies.has(n) || this.homes.has(n)) this.homes.set(n, group);
  }

  /** A group computes forwarded ops again, and other groups may do the same. */
  copy(forwarded, group) {
    for (const n of forwarded) this.copies.set(n, [...(this.copies.get(n) || []), group[0]]);
    this.join(group);
    for (const n of forwarded) this.homes.get(group[0]).add(n);
  }

  /** The group of an op that is drawn among the ops `mates`. */
  home(name, mates) {
    const again = (this.copies.get(name) || []).map((n) => this.homes.get(n));
    return again.find((group) => [...group].some((n) => n !== name && mates.has(n))) || this.homes.get(name);
  }
}
