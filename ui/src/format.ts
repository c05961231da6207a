// SPDX-License-Identifier: Apache-2.0

const units: [number, string][] = [[1e9, "G"], [1e6, "M"], [1e3, "k"]];

// short shows a number with three digits: 1.23k.
export function short(n: number): string {
  for (const [size, unit] of units) {
    if (n >= size) return (n / size).toPrecision(3).replace(/\.?0+$/, "") + unit;
  }
  if (n === 0) return "0";
  return n < 10 ? n.toFixed(1).replace(/\.0$/, "") : n.toFixed(0);
}

export function perSecond(n: number): string { return `${short(n)}/s`; }

export function bytes(n: number): string {
  for (const [size, unit] of [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]] as [number, string][]) {
    if (n >= size) return `${(n / size).toFixed(1).replace(/\.0$/, "")} ${unit}`;
  }
  return `${n} B`;
}

export function nanos(n: number): string {
  for (const [size, unit] of [[1e9, "s"], [1e6, "ms"], [1e3, "µs"]] as [number, string][]) if (n >= size) return `${short(n / size)} ${unit}`;
  return `${n} ns`;
}

// ago says how long before now a time was.
export function ago(time: string | number, now: number): string {
  const s = Math.max(0, Math.round((now - new Date(time).getTime()) / 1000));
  if (s < 5) return "just now";
  if (s < 60) return `${s} s ago`;
  if (s < 3600) return `${Math.floor(s / 60)} min ago`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ago`;
  return `${Math.floor(s / 86400)} d ago`;
}

export function clock(time: string | number): string {
  return new Date(time).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" });
}

export function plural(n: number, one: string, many = `${one}s`): string { return `${n} ${n === 1 ? one : many}`; }

// yaml shows a value as the files of Kerb have it, without quoting what needs none.
export function yaml(v: unknown, indent = ""): string[] {
  if (Array.isArray(v)) {
    if (v.length === 0) return [`${indent}[]`];
    return v.flatMap((item) => {
      const [first = "", ...rest] = yaml(item, `${indent}  `);
      return [`${indent}- ${first.trimStart()}`, ...rest];
    });
  }
  if (v !== null && typeof v === "object") {
    const entries = Object.entries(v).sort(([a], [b]) => (a < b ? -1 : 1));
    if (entries.length === 0) return [`${indent}{}`];
    return entries.flatMap(([k, item]) => {
      const plain = item === null || typeof item !== "object" || Object.keys(item).length === 0;
      return plain ? [`${indent}${k}: ${yaml(item).join("")}`] : [`${indent}${k}:`, ...yaml(item, `${indent}  `)];
    });
  }
  return [indent + (typeof v === "string" && (v === "" || /[\n#:]\s|^[\s*&!|>%@`]/.test(v)) ? JSON.stringify(v) : String(v))];
}

export interface Line { sign: " " | "+" | "-"; text: string }

// diff compares lines by their longest common subsequence.
export function diff(before: string[], after: string[]): Line[] {
  const n = before.length, m = after.length;
  if (n * m > 4e6) return [...before.map((text): Line => ({ sign: "-", text })), ...after.map((text): Line => ({ sign: "+", text }))];
  const common = Array.from({ length: n + 1 }, () => new Int32Array(m + 1));
  const at = (i: number, j: number) => common[i]?.[j] ?? 0;
  for (let i = n - 1; i >= 0; i--) {
    const row = common[i]!;
    for (let j = m - 1; j >= 0; j--) row[j] = before[i] === after[j] ? at(i + 1, j + 1) + 1 : Math.max(at(i + 1, j), at(i, j + 1));
  }
  const out: Line[] = [];
  for (let i = 0, j = 0; i < n || j < m;) {
    if (i < n && j < m && before[i] === after[j]) {
      out.push({ sign: " ", text: before[i++]! });
      j++;
    } else if (j >= m || (i < n && at(i + 1, j) >= at(i, j + 1))) {
      out.push({ sign: "-", text: before[i++]! });
    } else {
      out.push({ sign: "+", text: after[j++]! });
    }
  }
  return out;
}
