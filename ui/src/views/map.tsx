// SPDX-License-Identifier: Apache-2.0
// The map: who talks to whom, from the sums that modules have recorded. The drawing has the largest ends; the table below it
// has all edges, also for those who do not see the drawing.
import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { lines, type Flow, type FlowLine, type MissingFlows } from "../api";
import { bytes, plural, short } from "../format";
import { Card, Chip, Empty, Head, Table } from "../parts";
import { state } from "../state";
import { useSearch } from "../window";

const every = 3000; // milliseconds
const mostEnds = 12; // addresses that are drawn on each side; the others are one
const mostServices = 40; // that are drawn
const spans: [number, string][] = [[60, "last minute"], [300, "last 5 minutes"], [3600, "last hour"]];

interface Carried { packets: number; replyPackets: number; bytes: number; replyBytes: number; dropped: number; why: string }
interface Edge extends Carried { from: string; to: string; ports: string[] }
interface Read { flows: Flow[]; missing: MissingFlows[]; error: string }

function useFlows(since: number): Read | undefined {
  const answer = useSignal<Read | undefined>(undefined);
  useEffect(() => {
    const closed = new AbortController();
    let timer = 0;
    const read = async () => {
      const next: Read = { flows: [], missing: [], error: "" };
      try {
        await lines<FlowLine>(`v1/flows?since=${since}`, closed.signal, (l) => {
          if (l.error) next.error = l.error;
          else if (l.missing) next.missing.push(l.missing);
          else next.flows.push(l as Flow);
        });
      } catch (e) {
        next.error = (e as Error).message;
      }
      if (closed.signal.aborted) return;
      answer.value = next;
      timer = window.setTimeout(read, every);
    };
    void read();
    return () => { closed.abort(); clearTimeout(timer); };
  }, [since]);
  return answer.value;
}

// edgesOf adds flows up by their ends. Both ends of a flow may have recorded it, and several modules each of them: it is
// carried once, while each end has drops of its own.
function edgesOf(flows: Flow[]): Edge[] {
  const all = new Map<string, { from: string; to: string; ports: Set<string>; at: Map<string, Map<string, Carried>> }>();
  for (const f of flows) {
    const from = f.sourceService || f.source || "this node", to = f.destinationService || f.destination || "this node";
    const key = `${from} ${to}`;
    const edge = all.get(key) ?? { from, to, ports: new Set<string>(), at: new Map<string, Map<string, Carried>>() };
    all.set(key, edge);
    edge.ports.add(f.protocol + (f.destinationPort ? `/${f.destinationPort}` : ""));
    const place = f.service ?? f.interface;
    const modules = edge.at.get(place) ?? new Map<string, Carried>();
    edge.at.set(place, modules);
    const c = modules.get(f.module) ?? { packets: 0, replyPackets: 0, bytes: 0, replyBytes: 0, dropped: 0, why: "" };
    const dropped = (f.dropped ?? 0) + (f.replyDropped ?? 0);
    modules.set(f.module, {
      packets: c.packets + f.packets, replyPackets: c.replyPackets + f.replyPackets,
      bytes: c.bytes + f.bytes, replyBytes: c.replyBytes + f.replyBytes,
      dropped: c.dropped + dropped, why: dropped > 0 ? `${f.dropModule || "removed module"} (${f.dropReason})` : c.why,
    });
  }
  const most = (list: Carried[]) => list.reduce((a, b) => (b.packets + b.replyPackets > a.packets + a.replyPackets ? b : a));
  return [...all.values()].map(({ from, to, ports, at }) => {
    const places = [...at.values()].map((m) => most([...m.values()]));
    return {
      ...most(places), from, to, ports: [...ports].sort(),
      dropped: places.reduce((n, p) => n + p.dropped, 0), why: [...new Set(places.map((p) => p.why).filter(Boolean))].join(", "),
    };
  }).sort((a, b) => b.bytes + b.replyBytes - a.bytes - a.replyBytes);
}

const isService = (name: string) => state.value.services.has(name);
const isVirtual = (name: string) => state.value.virtualservices.has(name);
const linkOf = (name: string) => (isService(name) ? `#/services/${encodeURIComponent(name)}` : isVirtual(name) ? "#/virtual" : undefined);

function End({ name }: { name: string }) {
  const to = linkOf(name);
  return to ? <a href={to}>{name}</a> : <code>{name}</code>;
}

interface Drawn { key: string; name: string; column: number; row: number }

// place puts the ends into three columns: addresses that call services, services, and addresses that are called.
function place(edges: Edge[]): { nodes: Map<string, Drawn>; keyOf: (name: string, from: boolean) => string; rows: number } {
  const inside = (name: string) => isService(name) || isVirtual(name);
  const names = [new Map<string, number>(), new Map<string, number>(), new Map<string, number>()];
  const count = (name: string, from: boolean, n: number) => {
    const column = names[inside(name) ? 1 : from ? 0 : 2]!;
    column.set(name, (column.get(name) ?? 0) + n);
  };
  for (const e of edges) {
    count(e.from, true, e.bytes + e.replyBytes);
    count(e.to, false, e.bytes + e.replyBytes);
  }
  const nodes = new Map<string, Drawn>();
  names.forEach((column, c) => {
    const all = [...column].sort(([a, x], [b, y]) => (c === 1 ? (a < b ? -1 : 1) : y - x)).map(([name]) => name);
    const some = c === 1 || all.length <= mostEnds ? all : all.slice(0, mostEnds - 1);
    some.forEach((name, row) => nodes.set(`${c} ${name}`, { key: `${c} ${name}`, name, column: c, row }));
    if (some.length < all.length) nodes.set(`${c}`, { key: `${c}`, name: plural(all.length - some.length, "other"), column: c, row: some.length });
  });
  const keyOf = (name: string, from: boolean) => {
    const c = inside(name) ? 1 : from ? 0 : 2;
    return nodes.has(`${c} ${name}`) ? `${c} ${name}` : `${c}`;
  };
  return { nodes, keyOf, rows: Math.max(...[0, 1, 2].map((c) => [...nodes.values()].filter((n) => n.column === c).length)) };
}

const width = 190, height = 30, gap = 14, whole = 960;

function Drawing({ edges }: { edges: Edge[] }) {
  const on = useSignal("");
  const { nodes, keyOf, rows } = place(edges);
  const all = [...nodes.values()];
  if (all.filter((n) => n.column === 1).length > mostServices) return <p class="note">There are too many services to draw: the table has them.</p>;
  const x = (n: Drawn) => (n.column * (whole - width)) / 2;
  const y = (n: Drawn) => {
    const own = all.filter((o) => o.column === n.column).length;
    return 4 + (n.row + (rows - own) / 2) * (height + gap);
  };
  const path = (from: Drawn, to: Drawn) => {
    const fy = y(from) + height / 2, ty = y(to) + height / 2;
    if (from.column === to.column) { // between services: around them
      const right = x(from) + width, far = right + 40 + Math.min(120, Math.abs(ty - fy) / 2);
      return `M${right} ${fy - 4}C${far} ${fy - 4} ${far} ${ty + 4} ${right} ${ty + 4}`;
    }
    const fx = x(from) + width, tx = x(to), middle = (fx + tx) / 2;
    return `M${fx} ${fy}C${middle} ${fy} ${middle} ${ty} ${tx} ${ty}`;
  };
  const sums = new Map<string, { from: Drawn; to: Drawn; bytes: number; dropped: number }>();
  for (const e of edges) {
    const a = keyOf(e.from, true), b = keyOf(e.to, false);
    const sum = sums.get(`${a}>${b}`) ?? { from: nodes.get(a)!, to: nodes.get(b)!, bytes: 0, dropped: 0 };
    sum.bytes += e.bytes + e.replyBytes;
    sum.dropped += e.dropped;
    sums.set(`${a}>${b}`, sum);
  }
  const dim = (...keys: string[]) => (on.value && !keys.includes(on.value) ? "dim" : "");
  return (
    <div class="scroll">
      <svg class="map" viewBox={`0 0 ${whole} ${rows * (height + gap)}`} role="group" aria-label={`${plural(sums.size, "edge")} between ${plural(all.length, "end")}, which the table has as well`}>
        {[...sums].map(([key, e]) => (
          <path key={key} class={`${e.dropped > 0 ? "bad" : ""} ${dim(e.from.key, e.to.key)}`} d={path(e.from, e.to)} stroke-width={1 + Math.min(7, Math.log10(e.bytes + 1))}>
            <title>{e.from.name} to {e.to.name}: {bytes(e.bytes)}{e.dropped > 0 && `, ${short(e.dropped)} packets dropped`}</title>
          </path>
        ))}
        {all.map((n) => {
          const box = (
            <g class={`${n.column === 1 ? "own" : ""} ${isVirtual(n.name) ? "virtual" : ""}`}>
              <rect x={x(n)} y={y(n)} width={width} height={height} rx="8" />
              <text x={x(n) + width / 2} y={y(n) + height / 2 + 4}>{n.name.length > 24 ? `${n.name.slice(0, 23)}…` : n.name}</text>
              <title>{n.name}</title>
            </g>
          );
          const to = n.column === 1 ? linkOf(n.name) : undefined;
          const events = { onMouseEnter: () => { on.value = n.key; }, onMouseLeave: () => { on.value = ""; } };
          return to
            ? <a key={n.key} href={to} aria-label={`${n.name}, ${isVirtual(n.name) ? "virtual service" : "service"}`} {...events} onFocus={events.onMouseEnter} onBlur={events.onMouseLeave}>{box}</a>
            : <g key={n.key} {...events}>{box}</g>;
        })}
      </svg>
    </div>
  );
}

// lostOf says what is not on the map.
function lostOf(missing: MissingFlows[]): string {
  const sum = (of: (m: MissingFlows) => number | undefined) => missing.reduce((n, m) => n + (of(m) ?? 0), 0);
  const parts: string[] = [];
  const small = sum((m) => m.others) + sum((m) => m.omitted), lost = sum((m) => m.unrecordedPackets);
  if (small > 0) parts.push(`${short(small)} small flows`);
  if (lost > 0) parts.push(`${short(lost)} packets of flows that there was no room for`);
  return parts.join(", ");
}

export function MapView() {
  const since = useSignal(300);
  const only = useSignal(false);
  const read = useFlows(since.value);
  const all = edgesOf(read?.flows ?? []);
  const { found, box } = useSearch(all, (e) => [e.from, e.to, ...e.ports, e.why].join(" "), "the map");
  const edges = only.value ? found.filter((e) => e.dropped > 0) : found;
  const lost = lostOf(read?.missing ?? []);
  return (
    <>
      <Head title="Map" sub="Who talks to whom, as services of this node have seen it" command={`kerb flows --since ${since.value / 60}m`}>
        {box}
        <select aria-label="Time" onChange={(e) => { since.value = Number(e.currentTarget.value); }}>
          {spans.map(([s, text]) => <option key={s} value={s} selected={s === since.value}>{text}</option>)}
        </select>
        <label><input type="checkbox" checked={only.value} onChange={(e) => { only.value = e.currentTarget.checked; }} /> only with drops</label>
      </Head>
      {!read && <p class="note">Reading.</p>}
      {read?.error && (all.length > 0 ? <p class="result bad">{read.error}</p> : <Empty title="There is no map">{read.error}</Empty>)}
      {read && !read.error && edges.length === 0 && <Empty title={all.length > 0 ? "No flow is as searched for" : "No flows yet"}>New flows are here within seconds.</Empty>}
      {edges.length > 0 && (
        <Card extra={lost && <span class="note">Not in it: {lost}</span>} title={plural(edges.length, "edge")}>
          <Drawing edges={edges} />
          <Table rows={edges} caption="Who talks to whom" id={(e) => `${e.from} ${e.to}`} columns={[
            { name: "From", cell: (e) => <End name={e.from} /> },
            { name: "To", cell: (e) => <End name={e.to} /> },
            { name: "Ports", minor: true, cell: (e) => `${e.ports.slice(0, 4).join(", ")}${e.ports.length > 4 ? ` and ${e.ports.length - 4} more` : ""}` },
            { name: "Packets", num: true, cell: (e) => short(e.packets) },
            { name: "Bytes", num: true, cell: (e) => bytes(e.bytes) },
            { name: "Reply packets", num: true, minor: true, cell: (e) => short(e.replyPackets) },
            { name: "Reply bytes", num: true, minor: true, cell: (e) => bytes(e.replyBytes) },
            { name: "Dropped", num: true, cell: (e) => (e.dropped > 0 ? <Chip tone="bad">{short(e.dropped)} by {e.why}</Chip> : "") },
          ]} />
        </Card>
      )}
    </>
  );
}
