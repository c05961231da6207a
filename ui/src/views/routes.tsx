// SPDX-License-Identifier: Apache-2.0
// Views of what modules themselves answer: deadlines and models.
import type { Model } from "../api";
import { bytes } from "../format";
import { Card, Conditions, Empty, Head, Plain } from "../parts";
import { byName, state } from "../state";
import { useRoute } from "./modules";

function modulesOf(pkg: string): string[] {
  return byName(state.value.modules).filter((m) => m.status?.package.name === pkg).map((m) => m.metadata.name);
}

function rowsOf(v: unknown): Record<string, unknown>[] {
  if (Array.isArray(v)) return v as Record<string, unknown>[];
  if (v === null || typeof v !== "object") return [];
  const list = Object.values(v).find(Array.isArray) as Record<string, unknown>[] | undefined;
  return list ?? [v as Record<string, unknown>];
}

function Answer({ module, route, title, none }: { module: string; route: string; title: string; none: string }) {
  const { value, error } = useRoute<unknown>(`v1/modules/${module}/${route}`, 2000);
  const rows = rowsOf(value);
  return (
    <Card title={<>{title} <small>of <a href={`#/modules/${module}`}>{module}</a></small></>}>
      {error ? <p class="note">{error}</p> : rows.length === 0 ? <p class="note">{value === undefined ? "Reading." : none}</p> : <Plain rows={rows} caption={title} />}
    </Card>
  );
}

export function DeadlinesView() {
  const intercept = modulesOf("intercept"), responder = modulesOf("responder");
  return (
    <>
      <Head title="Deadlines" sub="Whether packets reached their programs in time, and what was answered in the kernel" command="kerb module list" />
      {intercept.length + responder.length === 0 && <Empty title="No module has deadlines">The packages intercept and responder do: docs/realtime.md says which one when.</Empty>}
      {intercept.map((m) => <><Answer key={m} module={m} route="late" title="Late" none="Nothing was late." /><Answer key={`${m}c`} module={m} route="classes" title="Classes" none="There are no classes." /></>)}
      {responder.map((m) => <Answer key={m} module={m} route="listeners" title="Listeners" none="There are no listeners." />)}
    </>
  );
}

export function ModelsView() {
  const { value, error } = useRoute<Model[]>("v1/models", 5000);
  const classifiers = modulesOf("classifier");
  return (
    <>
      <Head title="Models" sub="Which models judge packets, and how they agree with their reference" command="kerb model list" />
      {error && <p class="result bad">{error}</p>}
      {value?.length === 0 && classifiers.length === 0 && <Empty title="No models">The package classifier runs models on packets.</Empty>}
      {(value ?? []).map((m) => (
        <Card key={m.metadata.name} title={<>{m.metadata.name} <small>version {m.status?.summary.version}, {m.status?.summary.model} {m.status?.summary.shape}, {bytes(m.status?.summary.bytes ?? 0)}</small></>}>
          <p class="note">used by {(m.status?.modules ?? []).join(", ") || "no module"}{m.status?.summary.classes && `; classes ${m.status.summary.classes.join(", ")}`}</p>
          <Conditions all={m.status?.conditions} />
        </Card>
      ))}
      {classifiers.map((c) => (
        <>
          <Answer key={`${c}s`} module={c} route="stats" title="Decisions" none="Nothing was judged." />
          <Answer key={`${c}b`} module={c} route="blocked" title="Blocked sources" none="No source is blocked." />
        </>
      ))}
    </>
  );
}
