// SPDX-License-Identifier: Apache-2.0
import type { VirtualService } from "../api";
import { plural } from "../format";
import { Card, Chip, Conditions, Empty, Head, Plain, Table } from "../parts";
import { byName, state } from "../state";
import { useRoute } from "./modules";

export function VirtualView() {
  const all = byName(state.value.virtualservices);
  const proxies = byName(state.value.modules).filter((m) => m.status?.package.name === "proxy").map((m) => m.metadata.name);
  return (
    <>
      <Head title="Virtual services" sub={`${plural(all.length, "group")} of instances with addresses of their own`} command="kerb virtualservice list" />
      {all.length === 0 && <Empty title="No virtual services">A virtual service gives instances one address: docs/proxy.md.</Empty>}
      {all.map((v) => <One key={v.metadata.name} v={v} />)}
      {proxies.map((p) => <Sessions key={p} proxy={p} />)}
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

function Sessions({ proxy }: { proxy: string }) {
  const { value, error } = useRoute<unknown>(`v1/modules/${proxy}/instances`, 2000);
  const rows = Array.isArray(value) ? (value as Record<string, unknown>[]) : [];
  return (
    <Card title={<>Sessions <small>as <a href={`#/modules/${proxy}`}>{proxy}</a> counts them</small></>}>
      {error ? <p class="note">{error}</p> : rows.length > 0 ? <Plain rows={rows} caption="Sessions by instance" /> : <p class="note">No instances.</p>}
    </Card>
  );
}
