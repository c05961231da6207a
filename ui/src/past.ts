// SPDX-License-Identifier: Apache-2.0
// What the agent has sampled in the last hour, if its history is on: read while a view shows it.
import { signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { lines, type ChangeRecord } from "./api";
import { link, newestChanges } from "./state";

interface Series { name: string; service?: string; module?: string }
interface Row { time: number; values: (number | null)[] }
interface Line extends Partial<Row> { series?: Series[]; step?: number; error?: string }

// Past are sums of series by key: packets and drops, also of service/NAME and module/NAME.
export interface Past { times: number[]; of: Map<string, (number | null)[]>; why: string }

export const hour = 3600; // seconds
export const past = signal<Past>({ times: [], of: new Map(), why: "Reading the history" });

const period = 10_000; // milliseconds
let series: Series[] = [];
let rows: Row[] = [];
let step = period / 1000;
let readAt = -Infinity; // of the page's clock, which need not be the node's
let reading = false;

const keysOf: Record<string, (s: Series) => string[]> = {
  kerb_service_packets_per_second: (s) => ["packets", `service/${s.service}/packets`],
  kerb_service_dropped_packets_per_second: (s) => [`service/${s.service}/drops`],
  kerb_module_packets_per_second: (s) => [`module/${s.module}/packets`],
  kerb_dropped_packets_per_second: (s) => ["drops", `module/${s.module}/drops`],
};

// summed adds series up. Where the agent has taken no samples there is a gap.
function summed(): Past {
  const times: number[] = [], of = new Map<string, (number | null)[]>();
  const keys = series.map((s) => keysOf[s.name]?.(s) ?? []);
  for (const key of keys.flat()) of.set(key, []);
  const next = (time: number) => { times.push(time); for (const all of of.values()) all.push(null); };
  for (const r of rows) {
    const last = times.at(-1);
    if (last !== undefined && r.time - last > 2.5 * step) next(last + step);
    next(r.time);
    r.values.forEach((v, i) => {
      if (v === null) return;
      for (const key of keys[i] ?? []) {
        const all = of.get(key)!;
        all[all.length - 1] = (all.at(-1) ?? 0) + v;
      }
    });
  }
  return { times, of, why: times.length === 0 ? "The first samples come 10 s after the start of the agent." : "" };
}

// read gets what is new, or everything if series are new, too.
async function read(): Promise<void> {
  const elapsed = (performance.now() - readAt) / 1000;
  if (reading || link.value.kind !== "live" || elapsed < period / 2000) return;
  reading = true;
  const since = elapsed < hour / 2 ? Math.ceil(elapsed) + 30 : hour;
  const fresh: Row[] = [];
  let names: Series[] = [], why = "";
  await lines<Line>(`v1/history?since=${since}`, new AbortController().signal, (l) => {
    if (l.error) why = l.error;
    if (l.step) { names = l.series ?? []; step = l.step; }
    if (l.time && l.values) fresh.push({ time: l.time, values: l.values });
  }).catch((e: Error) => { why = e.message; });
  reading = false;
  readAt = performance.now();
  if (why !== "") {
    [series, rows, readAt] = [[], [], -Infinity];
    past.value = { times: [], of: new Map(), why };
    return;
  }
  if (since !== hour && JSON.stringify(names) !== JSON.stringify(series)) {
    readAt = -Infinity;
    return read();
  }
  const known = since === hour ? -Infinity : rows.at(-1)?.time ?? -Infinity;
  series = names;
  rows = [...(since === hour ? [] : rows), ...fresh.filter((r) => r.time > known)];
  rows = rows.filter((r) => r.time > rows.at(-1)!.time - hour);
  past.value = summed();
}

// usePast keeps the past up to date while a view is shown.
export function usePast(): Past {
  useEffect(() => {
    void read();
    const timer = setInterval(() => void read(), period);
    return () => clearInterval(timer);
  }, []);
  return past.value;
}

// minutes are the maxima of a key in each of the last 60 minutes.
export function minutes(p: Past, key: string): (number | null)[] {
  const out = new Array<number | null>(60).fill(null), end = p.times.at(-1) ?? 0;
  p.of.get(key)?.forEach((v, i) => {
    const at = 59 - Math.floor((end - p.times[i]!) / 60);
    if (v !== null && at >= 0) out[at] = Math.max(out[at] ?? 0, v);
  });
  return out;
}

// changesOf are the changes of the last hour that concern any of some resources, as "Module/fw"; without names all.
export function changesOf(p: Past, names?: string[]): ChangeRecord[] {
  const end = p.times.at(-1) ?? 0;
  return newestChanges().filter((r) => r.outcome === "done" && Date.parse(r.time) / 1000 > end - hour
    && (!names || r.changes.some((c) => names.includes(`${c.kind}/${c.name}`))));
}
