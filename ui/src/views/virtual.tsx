// SPDX-License-Identifier: Apache-2.0
import type { VirtualService } from "../api";
import { plural } from "../format";
import { Card, Chip, Conditions, Empty, Head, Table } from "../parts";
import { byName, state } from "../state";
import { List, useSearch } from "../window";
import { Views } from "./views";

export function VirtualView() {
  const all = byName(state.value.virtualservices);
  const proxies = byName(state.value.modules).filter((m) => m.status?.package.name === "proxy").map((m) => m.metadata.name);
  const { found, box } = useSearch(all, (v) => [v.metadata.name, ...v.spec.addresses.map((a) => a.address), ...(v.status?.instances ?? []).map((i) => i.name)].join(" "), "virtual services");
  return (
    <>
      <Head title="Virtual services" sub={`${plural(all.length, "group")} of instances with addresses of their own`} command="kerb virtualservice list">{box}</Head>
      {all.length === 0 && <Empty title="No virtual services">A virtual service gives instances one address: docs/proxy.md.</Empty>}
      <List rows={found} id={(v) => v.metadata.name} label="Virtual services" style="services">{(v) => <One v={v} />}</List>
      {proxies.map((p) => <Views key={p} module={p} title={true} />)}
    </>
  );
}

function One({ v }: { v: VirtualService }) {
  const s = v.status;
  const ports = (v.spec.ports ?? []).map((p) => `${p.protocol ?? "tcp"}/${p.port}${p.targetPort ? ` to ${p.targetPort}` : ""}`);
  return (
    <Card title={<>{v.metadata.name} <small>{v.spec.addresses.map((a) => `${a.address} ${a.instance ?? a.policy ?? "roundRobin"}`).join(", ")}</small></>}
      extra={<span class="note">{ports.join(", ") || "all ports"}, from {s?.source}</span>}>
      <Table rows={s?.instances ?? []} caption={`Instances of ${v.metadata.name}`} id={(i) => i.name} columns={[
        { name: "Instance", cell: (i) => i.name },
        { name: "State", cell: (i) => (i.reason ? <Chip tone="bad">{i.reason}</Chip> : i.ejected ? <Chip tone="warn" title={i.ejected}>ejected</Chip> : i.draining ? <Chip tone="warn">draining</Chip> : <Chip tone="ok">takes connections</Chip>) },
        { name: "Addresses", cell: (i) => (i.addresses ?? []).join(", ") },
        { name: "Where", cell: (i) => (i.service ? <a href={`#/services/${i.service}`}>{i.service}</a> : i.node ? `node ${i.node}` : "") },
      ]} />
      {(s?.conditions ?? []).some((c) => c.status !== "True") && <Conditions all={s?.conditions} />}
    </Card>
  );
}
