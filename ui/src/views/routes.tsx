// SPDX-License-Identifier: Apache-2.0
// Views of what modules themselves answer: deadlines and models.
import type { Model } from "../api";
import { bytes } from "../format";
import { Card, Conditions, Empty, Head } from "../parts";
import { byName, state } from "../state";
import { useRoute } from "./modules";
import { Views } from "./views";

function modulesOf(pkg: string): string[] {
  return byName(state.value.modules).filter((m) => m.status?.package.name === pkg).map((m) => m.metadata.name);
}

export function DeadlinesView() {
  const intercept = modulesOf("intercept"), responder = modulesOf("responder");
  return (
    <>
      <Head title="Deadlines" sub="Whether packets reached their programs in time, and what was answered in the kernel" command="kerb module list" />
      {intercept.length + responder.length === 0 && <Empty title="No module has deadlines">The packages intercept and responder do: docs/realtime.md says which one when.</Empty>}
      {[...intercept, ...responder].map((m) => <Views key={m} module={m} title={true} />)}
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
      {classifiers.map((m) => <Views key={m} module={m} title={true} />)}
    </>
  );
}
