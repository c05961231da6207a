// SPDX-License-Identifier: Apache-2.0
import type { ChangeRecord, Problem } from "../api";
import { Chart, Hour } from "../chart";
import { bytes, nanos, perSecond, plural, short } from "../format";
import { Icon } from "../icons";
import { Ago, Card, Chip, Command, Conditions, Empty, Head, Spark, Table, type Tone } from "../parts";
import { byName, history, lastChangeOf, newestChanges, rate, state } from "../state";
import { List } from "../window";
import { summary } from "./changes";

export function HealthView() {
  const { status } = state.value;
  const problems = status?.problems ?? [];
  const drops = dropping();
  return (
    <>
      <Head title="Health" command="kerb status" />
      <Verdict problems={problems} drops={drops} />
      <Problems all={problems} />
      <Tiles />
      <Dropping all={drops} />
      <Card><Chart title="Packets through the chains, last five minutes" lines={[{ key: "node/packets", name: "packets", color: "--c-accent" }, { key: "node/drops", name: "dropped", color: "--c-bad" }]} /></Card>
      <Hour title="Packets of services, last hour" lines={[{ key: "packets", name: "packets", color: "--c-accent" }, { key: "drops", name: "dropped", color: "--c-bad" }]} />
      <div class="two">
        <Card title="Recent changes" extra={<a href="#/changes">all</a>}><Recent all={newestChanges().slice(0, 6)} /></Card>
        <Card title="The agent"><Conditions all={status?.conditions} /></Card>
      </div>
    </>
  );
}

// Verdict answers the first question: is anything wrong, and what?
function Verdict({ problems, drops }: { problems: Problem[]; drops: Dropped[] }) {
  const { status } = state.value;
  const sum = drops.reduce((n, d) => n + d.rate, 0);
  const tone: Tone = problems.length > 0 ? "bad" : sum > 0 ? "warn" : "ok";
  const text = problems.length > 0 ? `${plural(problems.length, "problem")} to see to`
    : sum > 0 ? `${short(sum)} packets per second are dropped` : "Everything works";
  const [most] = drops;
  const change = most && lastChangeOf("Module", most.module);
  return (
    <section class={`verdict ${tone}`} role="status" id="verdict">
      <span class="badge"><Icon name={tone === "ok" ? "ok" : tone === "warn" ? "warn" : "bad"} size={30} /></span>
      <div>
        <h2>{text}</h2>
        {sum > 0 && most && (
          <p>{drops.length > 1 ? "Most of them" : "All of them"}{most.service && <> of <a href={`#/services/${encodeURIComponent(most.service)}`}>{most.service}</a></>}, by <a href={`#/modules/${most.module}`}>{most.module}</a> ({most.reason})
            {change && <>, which <a href={`#/changes/${change.number}`}>change {change.number}</a> changed <Ago time={change.time} /></>}</p>
        )}
        <p>{plural(status?.modules ?? 0, "module")} on {plural(status?.services ?? 0, "service")}, in {plural(status?.chains ?? 0, "chain")} on {plural(status?.attachPoints ?? 0, "attach point")}</p>
      </div>
    </section>
  );
}

const commands: Record<string, string> = { Module: "kerb module get", Service: "kerb service get", VirtualService: "kerb virtualservice get" };

function linkTo(p: Problem): string {
  const at: Record<string, string> = { Module: "modules", Service: "services", VirtualService: "virtual" };
  return at[p.kind] ? `#/${at[p.kind]}/${encodeURIComponent(p.name ?? "")}` : "#/health";
}

function Problems({ all }: { all: Problem[] }) {
  return (
    <List rows={all} id={(p) => `${p.kind}/${p.name}/${p.type}`} label="Problems" style="problems" item={() => "problem"}>
      {(p) => (
        <>
          <Icon name="warn" size={20} />
          <div>
            <p class="what"><a href={linkTo(p)}>{p.kind}{p.name && ` ${p.name}`}</a> <Chip tone="bad">{p.reason}</Chip> <small>{p.type}, since <Ago time={p.since} /></small></p>
            <p class="why">{p.message}</p>
            <p class="remedy"><Remedy p={p} /></p>
          </div>
        </>
      )}
    </List>
  );
}

// remedies say what to do about reasons whose message cannot; docs/operating.md has all.
const remedies: Record<string, string> = {
  NotFound: "Start it, or correct its spec.", NoInterface: "Give the service a veth to this node.",
  NoAttachPoint: "Start what the module selects, or correct spec.attach.",
  ReadOnly: "Make the state directory writable, then restart the agent.", SandboxFailed: "kerb doctor says why.",
  NoInstance: "Start an instance.", NoModule: "Apply a module with the package proxy.",
  LatencyExceeded: "Raise the budget, or use fewer modules.", MemoryExceeded: "Raise the budget, or use fewer modules.",
  Blown: "Look at what the model blocked, then set fuse=intact.", NotRunning: "See its lines in the agent's log.",
};

function Remedy({ p }: { p: Problem }) {
  const command = p.name && commands[p.kind] ? `${commands[p.kind]} ${p.name}` : "kerb status";
  const last = p.name ? lastChangeOf(p.kind, p.name) : undefined;
  return (
    <>
      {remedies[p.reason] && <span>{remedies[p.reason]}</span>}
      {last && <span>Last changed by <a href={`#/changes/${last.number}`}>change {last.number}</a>, <Ago time={last.time} />.</span>}
      <Command text={command} />
    </>
  );
}

interface Dropped { service: string; module: string; reason: string; rate: number; packets: number }

// dropping are the drops that go on: of services, and on interfaces of the node. Those are what remains of all, which the
// kernel counts elsewhere: a remainder of a moment is no drop.
function dropping(): Dropped[] {
  const out: Dropped[] = [];
  for (const m of byName(state.value.modules)) {
    const module = m.metadata.name;
    for (const d of m.status?.drops ?? []) {
      const key = `drop/${module}/${d.reason}`;
      let left = d.packets;
      for (const s of d.services ?? []) {
        left -= s.packets;
        if (recently(`${key}/${s.service}`)) out.push({ service: s.service, module, reason: d.reason, rate: rate(`${key}/${s.service}`), packets: s.packets });
      }
      if (mean(`${key}/`) > 0.1 * mean(key)) out.push({ service: "", module, reason: d.reason, rate: mean(`${key}/`), packets: left });
    }
  }
  return out.sort((a, b) => b.rate - a.rate || (a.service + a.module < b.service + b.module ? -1 : 1));
}

function mean(key: string): number {
  const points = history(key).slice(-10);
  return points.reduce((sum: number, p) => sum + (p ?? 0), 0) / Math.max(1, points.length);
}

const recently = (key: string) => history(key).slice(-10).some((p) => (p ?? 0) > 0);

function Dropping({ all }: { all: Dropped[] }) {
  if (all.length === 0) return null;
  return (
    <Card title={all.some((d) => d.rate > 0) ? "Dropping now" : "Dropped just now"} extra={<a href="#/packets">trace packets</a>}>
      <Table rows={all.slice(0, 12)} caption="Services whose packets are dropped" id={(d) => `${d.service}/${d.module}/${d.reason}`}
        href={(d) => (d.service ? `#/services/${encodeURIComponent(d.service)}` : `#/modules/${d.module}`)}
        columns={[
          { name: "Service", cell: (d) => d.service || "node" },
          { name: "By", cell: (d) => <><a href={`#/modules/${d.module}`}>{d.module}</a> <Chip tone="bad">{d.reason}</Chip></> },
          { name: "Rate", num: true, cell: (d) => perSecond(d.rate) },
          { name: "Last minute", minor: true, cell: (d) => <Spark of={`drop/${d.module}/${d.reason}/${d.service}`} tone="bad" label={`Drops of ${d.service} in the last minute`} /> },
          { name: "Packets", num: true, minor: true, cell: (d) => short(d.packets) },
          { name: "Changed", cell: (d) => <LastChange name={d.module} /> },
        ]} />
    </Card>
  );
}

function LastChange({ name }: { name: string }) {
  const r = lastChangeOf("Module", name);
  return r ? <a href={`#/changes/${r.number}`}>#{r.number} <Ago time={r.time} /></a> : <>none recorded</>;
}

function Tiles() {
  const { status } = state.value;
  const tile = (name: string, value: string, key?: string, tone?: Tone) => (
    <div class={`tile ${tone ?? ""}`}><span>{name}</span><b>{value}</b>{key && <Spark of={key} tone={tone ?? "info"} label={`${name} in the last minute`} />}</div>
  );
  const drops = rate("node/drops");
  const slowest = Math.max(0, ...[...state.value.chains.values()].map((c) => c.latency?.p99Nanoseconds ?? 0));
  return (
    <section class="tiles" aria-label="The node">
      {tile("Packets", perSecond(rate("node/packets")), "node/packets")}
      {tile("Dropped", perSecond(drops), "node/drops", drops > 0 ? "bad" : undefined)}
      {tile("Kernel memory", bytes(status?.memoryBytes ?? 0))}
      {tile("Slowest chain, p99", slowest > 0 ? nanos(slowest) : "none yet")}
    </section>
  );
}

function Recent({ all }: { all: ChangeRecord[] }) {
  if (all.length === 0) return <Empty title="No changes are recorded" />;
  return (
    <ul class="recent">
      {all.map((r) => (
        <li key={r.number}>
          <a href={`#/changes/${r.number}`}><b>#{r.number}</b> {summary(r)}</a>
          <small>{r.outcome === "refused" ? <Chip tone="warn">refused</Chip> : r.reverts ? <Chip tone="info">reverts #{r.reverts}</Chip> : nanos(r.tookNanoseconds)} <Ago time={r.time} /></small>
        </li>
      ))}
    </ul>
  );
}
