// SPDX-License-Identifier: Apache-2.0
import type { Chain, Count, Service } from "../api";
import { Chart, Hour } from "../chart";
import { nanos, perSecond, plural, short } from "../format";
import { Icon } from "../icons";
import { Card, Chip, Conditions, Empty, Head, Spark, Table } from "../parts";
import { changesOf, hour, minutes, usePast, type Past } from "../past";
import { byName, rate, state } from "../state";
import { List, some, useSearch } from "../window";

// chainsOf are the chains on a service's interfaces, with the interface: first to the service, then from it.
function chainsOf(s: Service): { chain: Chain; on: string; hook: string; mode: string; others: string[] }[] {
  const name = s.metadata.name;
  return (s.status?.links ?? []).flatMap((l) => (l.hooks ?? []).flatMap((h) => {
    const chain = state.value.chains.get(h.chain);
    if (!chain) return [];
    const others = [...new Set((chain.points ?? []).map((p) => p.service ?? p.interface))].filter((o) => o !== name);
    return [{ chain, on: l.interface, hook: h.hook, mode: h.mode, others }];
  })).sort((a, b) => (a.chain.direction < b.chain.direction ? 1 : -1));
}

const ready = (s: Service) => s.status?.conditions?.find((c) => c.type === "Ready");

export function ServicesView() {
  const all = byName(state.value.services);
  const past = usePast();
  const { found, box } = useSearch(all, (s) => [s.metadata.name, ...Object.entries(s.metadata.labels ?? {}).map(([k, v]) => `${k}=${v}`), ...(s.status?.addresses ?? [])].join(" "), "services");
  return (
    <>
      <Head title="Services" sub={`${plural(all.length, "workload")} of this node, and what their packets pass`} command="kerb service list">{box}</Head>
      {all.length === 0 && <Empty title="No services yet">A service is a workload with its own network namespace: <code>kerb service add web --netns /run/netns/web</code></Empty>}
      {all.length > 0 && found.length === 0 && <Empty title="No service has all of these words">Names, labels and addresses are searched.</Empty>}
      <List rows={found} id={(s) => s.metadata.name} label="Services" style="services">{(s) => <ServiceCard s={s} past={past} />}</List>
      {past.why && <p class="note">No graphs of the last hour: {past.why}</p>}
    </>
  );
}

function State({ s }: { s: Service }) {
  const c = ready(s);
  return c && <Chip tone={c.status === "True" ? "ok" : "warn"} title={c.message}>{c.status === "True" ? "ready" : c.reason}</Chip>;
}

// named are the service and the modules that its packets meet: changes of these concern it.
const named = (s: Service) => [`Service/${s.metadata.name}`,
  ...chainsOf(s).flatMap((c) => (c.chain.counts ?? []).map((n) => `Module/${n.module}`))];

// LastHour draws the last hour of a service in the space of a word.
function LastHour({ s, past }: { s: Service; past: Past }) {
  const key = `service/${s.metadata.name}`;
  if (!past.of.has(`${key}/packets`)) return null;
  const end = past.times.at(-1)!;
  const marks = changesOf(past, named(s)).map((c) => 1 - (end - Date.parse(c.time) / 1000) / hour);
  return (
    <span class="hour">last hour
      <Spark all={minutes(past, `${key}/packets`)} marks={marks} label={`Packets of ${s.metadata.name} in the last hour, and ${plural(marks.length, "change")}`} />
      {past.of.has(`${key}/drops`) && <Spark all={minutes(past, `${key}/drops`)} marks={marks} tone="bad" label={`Drops of ${s.metadata.name} in the last hour`} />}
    </span>
  );
}

function ServiceCard({ s, past }: { s: Service; past: Past }) {
  const name = s.metadata.name;
  const drops = rate(`service/${name}/drops`);
  const chains = chainsOf(s);
  return (
    <section class={`card service ${drops > 0 ? "dropping" : ""}`}>
      <div class="card-head">
        <h2><a href={`#/services/${encodeURIComponent(name)}`}>{name}</a> <State s={s} /></h2>
        <span class="facts">{(s.status?.addresses ?? []).filter((a) => !a.startsWith("fe80")).slice(0, 2).join("  ")}</span>
        <LastHour s={s} past={past} />
        <span class={`droprate ${drops > 0 ? "bad" : ""}`}>{drops > 0 ? <>{perSecond(drops)} dropped <Spark of={`service/${name}/drops`} tone="bad" label={`Drops of ${name}`} /></> : "no drops"}</span>
      </div>
      {chains.map((c) => <Pipeline key={c.on + c.hook} {...c} service={name} />)}
      {chains.length === 0 && <p class="note">{ready(s)?.message || "No module is on this service's interfaces."}</p>}
    </section>
  );
}

// Pipeline draws a chain in the direction of its packets: where they come from, the modules in order with what they do,
// and where they go.
export function Pipeline({ chain, on, hook, mode, others, service }: { chain: Chain; on: string; hook: string; mode: string; others: string[]; service: string }) {
  const to = chain.direction === "ingress";
  const counts = chain.counts ?? [];
  const ends = [`${on}`, service];
  const [from, end] = to ? ends : [...ends].reverse();
  const key = (i: number) => `chain/${chain.id}/${i}`;
  const last = counts.length - 1;
  return (
    <div class="chain">
      <p class="chain-head">
        <b>{to ? "to" : "from"} {service}</b> <span>{hook}, {mode}</span>
        {chain.latency && <span>whole chain p50 {nanos(chain.latency.p50Nanoseconds)}, p99 {nanos(chain.latency.p99Nanoseconds)}</span>}
        {others.length > 0 && <Chip tone="mute" title={some(others)}>counts include {others.length > 2 ? plural(others.length, "other") : others.join(", ")}</Chip>}
      </p>
      <ol class="pipeline" aria-label={`Packets ${to ? "to" : "from"} ${service}`}>
        <li class="end"><span>{from}</span></li>
        <Arrow packets={rate(key(0))} />
        {counts.map((c, i) => (
          <>
            <Stage key={c.module} c={c} at={key(i)} own={others.length > 0 ? `service/${service}/${c.module}` : `${key(i)}/drop`} />
            <Arrow key={`${c.module}>`} packets={rate(i < last ? key(i + 1) : `${key(i)}/next`)} />
          </>
        ))}
        <li class="end"><span>{end}</span></li>
      </ol>
    </div>
  );
}

function Arrow({ packets }: { packets: number }) {
  const width = packets > 0 ? Math.min(6, 1.5 + Math.log10(packets + 1)) : 1.5;
  return (
    <li class={`arrow ${packets > 0 ? "flows" : ""}`}>
      <span>{packets > 0 ? perSecond(packets) : "0"}</span>
      <svg viewBox="0 0 60 12" preserveAspectRatio="none" aria-hidden="true"><path d="M0 6h60" stroke-width={width} /></svg>
      <small class="hidden">packets per second</small>
    </li>
  );
}

const shown = ["drop", "reply", "redirect"];

// Stage is a module in a chain. Drops are the service's own, also where it shares the chain.
function Stage({ c, at, own }: { c: Count; at: string; own: string }) {
  const all = rate(at);
  const drop = Math.min(rate(own), rate(`${at}/drop`));
  const exit = (v: string) => (v === "drop" ? drop : rate(`${at}/${v}`));
  const module = state.value.modules.get(c.module);
  const total = (v: string) => c.verdicts?.find((x) => x.verdict === v)?.packets ?? 0;
  const share = (v: string) => (all > 0 ? rate(`${at}/${v}`) : total(v)) / Math.max(1e-9, all > 0 ? all : c.packets);
  return (
    <li class={`stage ${drop > 0 ? "dropping" : ""}`}>
      <a href={`#/modules/${encodeURIComponent(c.module)}`} title={`${short(c.packets)} packets so far`}>
        <b>{c.module}</b><small>{module?.spec.package}</small>
      </a>
      <span class="time">{c.latency ? <>{nanos(c.latency.p50Nanoseconds)} <i>|</i> {nanos(c.latency.p99Nanoseconds)}</> : <i>not measured yet</i>}</span>
      <span class="bar" aria-hidden="true">{["next", ...shown].map((v) => <i key={v} class={v} style={{ flexGrow: share(v) }} />)}</span>
      {shown.filter((v) => total(v) > 0).map((v) => (
        <span key={v} class={`exit ${v} ${exit(v) > 0 ? "now" : ""}`}><Icon name="right" size={12} />{v} {perSecond(exit(v))}</span>
      ))}
    </li>
  );
}

export function ServiceView({ name }: { name: string }) {
  const s = state.value.services.get(name);
  if (!s) return <><Head title={name} /><Empty title="There is no such service">It was removed, or never registered. <a href="#/services">All services</a></Empty></>;
  const chains = chainsOf(s);
  const drops = s.status?.drops ?? [];
  return (
    <>
      <Head title={<>{name} <State s={s} /></>} sub={(s.status?.addresses ?? []).join(", ")} command={`kerb service get ${name}`}>
        <a class="button" href={`#/packets?service=${encodeURIComponent(name)}`}><Icon name="packets" />Trace packets</a>
      </Head>
      <Card title="What its packets pass">
        {chains.map((c) => <Pipeline key={c.on + c.hook} {...c} service={name} />)}
        {chains.length === 0 && <p class="note">No module is on this service's interfaces.</p>}
        <p class="note">Packets per second between the modules; below each name the time that it takes, p50 | p99, of one packet in 4,096.</p>
      </Card>
      <Hour title="Last hour" names={named(s)} lines={[{ key: `service/${name}/packets`, name: "packets", color: "--c-accent" }, { key: `service/${name}/drops`, name: "dropped", color: "--c-bad" }]} />
      <Card title="Drops">
        {drops.length === 0 ? <p class="note">No packet of {name} was dropped.</p> : (
          <>
            <Chart title="Dropped packets of the service" height={140} lines={[{ key: `service/${name}/drops`, name: "dropped", color: "--c-bad" }]} />
            <Table rows={drops} caption="Drops by module and reason" id={(d) => `${d.module}/${d.reason}`} columns={[
              { name: "Module", cell: (d) => <a href={`#/modules/${d.module}`}>{d.module}</a> },
              { name: "Reason", cell: (d) => <Chip tone="bad">{d.reason}</Chip> },
              { name: "Rate", num: true, cell: (d) => perSecond(rate(`service/${name}/${d.module}/${d.reason}`)) },
              { name: "Packets", num: true, cell: (d) => short(d.packets) },
            ]} />
          </>
        )}
      </Card>
      <Card title="Conditions"><Conditions all={s.status?.conditions} /></Card>
      {chains.some((c) => c.others.length > 0) && <p class="note">Services with the same modules share a chain; its counts are of all of them, drops are this service's own.</p>}
    </>
  );
}
