// SPDX-License-Identifier: Apache-2.0
// The state of the node, as the stream sends it once a second, and what the page derives from two states: rates, and
// their history since it was opened.
import { signal } from "@preact/signals";
import type { Chain, ChainCounts, ChangeRecord, Module, ModuleDrops, Service, Status, VirtualService } from "./api";

export interface State {
  time: number;
  status?: Status;
  chains: Map<string, Chain>;
  services: Map<string, Service>;
  modules: Map<string, Module>;
  virtualservices: Map<string, VirtualService>;
  changes: Map<string, ChangeRecord>;
  counts: Map<string, Partial<ChainCounts & ModuleDrops>>; // by chain and module; the other parts have them, too
}

const empty = (): State => ({
  time: 0, chains: new Map(), services: new Map(), modules: new Map(), virtualservices: new Map(), changes: new Map(),
  counts: new Map(),
});

export const state = signal<State>(empty());
// link is how the page gets its state: live, agent (kerb ui gets no answer from the agent), or ended (kerb ui is gone).
export const link = signal<{ kind: "starting" | "live" | "agent" | "ended"; error?: string; since: number }>({ kind: "starting", since: Date.now() });
export const may = signal({ write: false });

interface Frame {
  time: number; error?: string; first?: boolean;
  set?: Record<string, Record<string, unknown>>; gone?: Record<string, string[]>;
}

const keep = 300; // points of history
export const times: number[] = []; // Unix, in seconds
const series = new Map<string, (number | null)[]>();
let counters = new Map<string, number>();
let rates = new Map<string, number>();
let countedAt = 0; // Unix, in milliseconds; 0 after a gap

export function rate(key: string): number { return rates.get(key) ?? 0; }
export function known(key: string): boolean { return rates.has(key); }
export function history(key: string): (number | null)[] { return series.get(key) ?? times.map(() => null); }

// countersOf are the counters of a state by key. Those of the chains of a node add up to node/.
function countersOf(s: State): Map<string, number> {
  const all = new Map<string, number>();
  const add = (key: string, n: number) => all.set(key, (all.get(key) ?? 0) + n);
  for (const [id, c] of s.chains) {
    for (const [i, n] of (c.counts ?? []).entries()) {
      const key = `chain/${id}/${i}`;
      add(key, n.packets);
      add(`${key}/bytes`, n.bytes);
      if (i === 0 && !c.ready) add("node/packets", n.packets);
      for (const v of n.verdicts ?? []) add(`${key}/${v.verdict}`, v.packets);
    }
  }
  for (const [name, m] of s.modules) {
    for (const d of m.status?.drops ?? []) {
      add("node/drops", d.packets);
      add(`module/${name}/drops`, d.packets);
      add(`drop/${name}/${d.reason}`, d.packets);
      let rest = d.packets;
      for (const by of d.services ?? []) {
        add(`drop/${name}/${d.reason}/${by.service}`, by.packets);
        rest -= by.packets;
      }
      add(`drop/${name}/${d.reason}/`, Math.max(0, rest));
    }
  }
  for (const [name, v] of s.services) {
    for (const d of v.status?.drops ?? []) {
      add(`service/${name}/drops`, d.packets);
      add(`service/${name}/${d.module}/${d.reason}`, d.packets);
      add(`service/${name}/${d.module}`, d.packets);
    }
  }
  return all;
}

function measure(s: State): void {
  const now = countersOf(s);
  const seconds = (s.time - countedAt) / 1000;
  rates = new Map();
  if (countedAt && seconds > 0) {
    // A counter that is lower than before has begun again; one that is new begins with zero, unless it is of a chain
    // that continues the counts of another.
    for (const [key, n] of now) {
      const before = counters.get(key) ?? (key.startsWith("chain/") ? undefined : 0);
      if (before !== undefined && n >= before) rates.set(key, (n - before) / seconds);
    }
    if (![...now.keys()].some((k) => k.startsWith("chain/") && !counters.has(k))) lastPackets = rates.get("node/packets") ?? 0;
    rates.set("node/packets", lastPackets);
  }
  counters = now;
  countedAt = s.time;
  record(s.time / 1000, rates);
}

let lastPackets = 0; // the sum jumps when chains come with counts, and is then left as it was

function record(at: number, values: Map<string, number>): void {
  times.push(at);
  for (const key of values.keys()) if (!series.has(key)) series.set(key, new Array<null>(times.length - 1).fill(null));
  for (const [key, points] of series) points.push(values.get(key) ?? null);
  if (times.length > keep) {
    times.shift();
    for (const [key, points] of series) {
      points.shift();
      if (points.every((p) => p === null)) series.delete(key);
    }
  }
}

// count puts the newest counters into the chains, modules and services of a state, which are read less often.
function count(s: State): void {
  const drops = new Map<string, { module: string; reason: string; packets: number }[]>();
  s.chains = new Map(s.chains);
  s.modules = new Map(s.modules);
  for (const c of s.counts.values()) {
    const chain = s.chains.get(c.id ?? ""), module = s.modules.get(c.module ?? "");
    if (chain) s.chains.set(chain.id, { ...chain, counts: c.counts, latency: c.latency });
    if (module?.status) s.modules.set(module.metadata.name, { ...module, status: { ...module.status, drops: c.drops } });
    for (const d of c.drops ?? []) {
      for (const by of d.services ?? []) {
        drops.set(by.service, [...(drops.get(by.service) ?? []), { module: c.module!, reason: d.reason, packets: by.packets }]);
      }
    }
  }
  s.services = new Map([...s.services].map(([name, v]) => [name, v.status ? { ...v, status: { ...v.status, drops: drops.get(name) } } : v]));
}

function take(f: Frame): void {
  const old = f.first ? empty() : state.value;
  const next: State = { ...old, time: f.time };
  for (const [part, items] of Object.entries(f.set ?? {})) {
    if (part === "status") {
      next.status = items["status"] as Status;
      continue;
    }
    const key = part as "chains";
    next[key] = new Map(next[key]);
    for (const [name, item] of Object.entries(items)) next[key].set(name, item as Chain);
  }
  for (const [part, names] of Object.entries(f.gone ?? {})) {
    const key = part as "chains";
    next[key] = new Map(next[key]);
    for (const name of names) next[key].delete(name);
  }
  if (f.error) {
    rates = new Map();
    countedAt = 0;
    record(next.time / 1000, rates);
  } else {
    count(next);
    measure(next);
  }
  state.value = next;
  const kind = f.error ? "agent" : "live";
  if (link.value.kind !== kind || link.value.error !== f.error) {
    link.value = { kind, error: f.error, since: link.value.kind === kind ? link.value.since : Date.now() };
  }
}

export function connect(): void {
  fetch("page").then((r) => r.json()).then((v: { write: boolean }) => { may.value = v; }).catch(() => undefined);
  const source = new EventSource("stream");
  source.onmessage = (e: MessageEvent<string>) => take(JSON.parse(e.data) as Frame);
  source.onerror = () => {
    if (link.value.kind !== "ended") link.value = { kind: "ended", since: Date.now() };
    countedAt = 0;
    if (source.readyState === EventSource.CLOSED) setTimeout(connect, 2000);
  };
}

// byName returns the items of a part in the order of their names.
export function byName<T>(m: Map<string, T>): T[] {
  return [...m.entries()].sort(([a], [b]) => (a < b ? -1 : 1)).map(([, v]) => v);
}

export function newestChanges(): ChangeRecord[] {
  return [...state.value.changes.values()].sort((a, b) => b.number - a.number);
}

// lastChangeOf returns the newest change that was made to a resource.
export function lastChangeOf(kind: string, name: string): ChangeRecord | undefined {
  return newestChanges().find((r) => r.outcome === "done" && r.changes.some((c) => c.kind === kind && c.name === name));
}
