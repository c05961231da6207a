// SPDX-License-Identifier: Apache-2.0
import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { send, type Package, type Point } from "../api";
import { Hour } from "../chart";
import { bytes, nanos, perSecond, plural, short } from "../format";
import { Ago, Card, Chip, Conditions, Empty, Head, Table } from "../parts";
import { Views } from "./views";
import { byName, lastChangeOf, rate, state } from "../state";
import { useSearch } from "../window";

// useRoute reads a route of the agent, again every few seconds while its view is open. One that is slow is not asked
// again before it has answered: browsers send few requests to a host at a time.
export function useRoute<T>(path: string, every = 0): { value?: T; error?: string } {
  const answer = useSignal<{ value?: T; error?: string }>({});
  useEffect(() => {
    const closed = new AbortController();
    let pending = false;
    const read = () => {
      if (pending) return;
      pending = true;
      send<T>(path, "GET", closed.signal).then((value) => { if (!closed.signal.aborted) answer.value = { value }; })
        .catch((e: Error) => { if (!closed.signal.aborted) answer.value = { value: answer.value.value, error: e.message }; })
        .finally(() => { pending = false; });
    };
    read();
    const timer = every > 0 ? setInterval(read, every) : 0;
    return () => { closed.abort(); clearInterval(timer); };
  }, [path]);
  return answer.value;
}

const mostServices = 20; // with drops of one reason that are shown

function Attachments({ all }: { all: Point[] }) {
  const { found, box } = useSearch(all, (i) => [i.service ?? "node", i.interface, i.cgroup, i.hook, i.direction].join(" "), "attach points");
  return (
    <Card title="Where it runs" extra={box}><Table rows={found} caption="Attach points" id={(i) => [i.service, i.interface, i.hook, i.direction, i.cgroup].join(" ")} columns={[
      { name: "Service", cell: (i) => (i.service ? <a href={`#/services/${i.service}`}>{i.service}</a> : "node") },
      { name: "Interface", cell: (i) => i.interface || i.cgroup },
      { name: "Hook", cell: (i) => i.hook },
      { name: "Direction", cell: (i) => i.direction },
      { name: "Chain", cell: (i) => <code>{i.chain.slice(0, 10)}</code> },
    ]} /></Card>
  );
}

export function ModuleView({ name }: { name: string }) {
  const m = state.value.modules.get(name);
  if (!m) return <><Head title={name} /><Empty title="There is no such module">It was removed. <a href="#/changes">Changes</a> say by whom.</Empty></>;
  const s = m.status;
  const last = lastChangeOf("Module", name);
  return (
    <>
      <Head title={name} command={`kerb module get ${name}`}
        sub={<>{s?.package.name} {s?.package.version}, {plural(s?.attachments?.length ?? 0, "attach point")}, {bytes(s?.memoryBytes ?? 0)} of kernel memory{last && <>, last changed by <a href={`#/changes/${last.number}`}>change {last.number}</a> <Ago time={last.time} /></>}</>} />
      <Card title="Conditions"><Conditions all={s?.conditions} /></Card>
      <Hour title="Last hour" names={[`Module/${name}`]} lines={[{ key: `module/${name}/packets`, name: "packets", color: "--c-accent" }, { key: `module/${name}/drops`, name: "dropped", color: "--c-bad" }]} />
      {(s?.drops?.length ?? 0) > 0 && (
        <Card title="Drops"><Table rows={s!.drops!} caption="Drops by reason" id={(d) => d.reason} columns={[
          { name: "Reason", cell: (d) => <Chip tone="bad">{d.reason}</Chip> },
          { name: "Rate", num: true, cell: (d) => perSecond(rate(`drop/${name}/${d.reason}`)) },
          { name: "Packets", num: true, cell: (d) => short(d.packets) },
          { name: "Services", cell: (d) => <>{(d.services ?? []).slice(0, mostServices).map((x) => <a class="pill" key={x.service} href={`#/services/${x.service}`}>{x.service} {short(x.packets)}</a>)}
            {(d.services?.length ?? 0) > mostServices && ` and ${d.services!.length - mostServices} more`}</> },
        ]} /></Card>
      )}
      {(s?.counts?.length ?? 0) > 0 && (
        <Card title="Packets"><Table rows={s!.counts!} caption="Packets by hook and direction" id={(c) => c.hook + c.direction} columns={[
          { name: "Hook", cell: (c) => c.hook },
          { name: "Direction", cell: (c) => c.direction },
          { name: "Packets", num: true, cell: (c) => short(c.packets) },
          ...["next", "drop", "reply", "redirect"].map((v) => ({ name: v, num: true, cell: (c: { verdicts?: { verdict: string; packets: number }[] }) => short(c.verdicts?.find((x) => x.verdict === v)?.packets ?? 0) })),
          { name: "p50", num: true, cell: (c) => (c.latency ? nanos(c.latency.p50Nanoseconds) : "") },
          { name: "p99", num: true, cell: (c) => (c.latency ? nanos(c.latency.p99Nanoseconds) : "") },
        ]} /></Card>
      )}
      <Views module={name} title={false} />
      <Attachments all={s?.attachments ?? []} />
    </>
  );
}

export function PackagesView() {
  const { value, error } = useRoute<Package[]>("v1/packages");
  const used = (p: Package) => byName(state.value.modules).filter((m) => m.status?.package.digest === p.digest);
  return (
    <>
      <Head title="Packages" sub="What can be deployed on this node, and where each package comes from" command="kerb package list" />
      {error && <p class="result bad">{error}</p>}
      <Card><Table rows={value ?? []} caption="Packages" id={(p) => p.source + p.name} columns={[
        { name: "Package", cell: (p) => <><b>{p.name}</b> {p.version}<br /><small>{p.description}</small></> },
        { name: "Used by", cell: (p) => used(p).map((m) => <a class="pill" key={m.metadata.name} href={`#/modules/${m.metadata.name}`}>{m.metadata.name}</a>) },
        { name: "Source", cell: (p) => p.source },
        { name: "Hooks", cell: (p) => p.hooks.join(", ") },
        { name: "Memory", num: true, cell: (p) => bytes(p.memoryBytes) },
        { name: "Digest", cell: (p) => <code title={p.digest}>{p.digest.replace("sha256:", "").slice(0, 12)}</code> },
      ]} /></Card>
    </>
  );
}
