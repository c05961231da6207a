// SPDX-License-Identifier: Apache-2.0
import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { lines, send, type ApplyResult, type Change, type ChangeRecord, type NodeEvent } from "../api";
import { clock, diff, nanos, yaml } from "../format";
import { Icon } from "../icons";
import { Ago, Card, Chip, Empty, Head, Table } from "../parts";
import { may, newestChanges } from "../state";

export function summary(r: ChangeRecord): string {
  const texts = r.changes.slice(0, 3).map((c) => `${c.action} ${c.kind.toLowerCase()}/${c.name}`);
  return texts.join(", ") + (r.changes.length > 3 ? ` and ${r.changes.length - 3} more` : "");
}

function Outcome({ r }: { r: ChangeRecord }) {
  if (r.outcome === "refused") return <Chip tone="warn">refused{r.repeated ? ` ${r.repeated + 1} times` : ""}</Chip>;
  return r.reverts ? <Chip tone="info">reverts #{r.reverts}</Chip> : <Chip tone="ok">done</Chip>;
}

const who = (r: ChangeRecord) => (r.owner === "user" ? r.by : `${r.owner} (${r.by})`);

export function ChangesView({ number }: { number: string }) {
  if (number) return <ChangeView key={number} number={number} />;
  const all = newestChanges();
  return (
    <>
      <Head title="Changes" sub="Who changed what, when, and what was refused" command="kerb changes" />
      {all.length === 0 ? <Empty title="No changes are recorded">The next kerb apply is the first.</Empty> : (
        <Card><Table rows={all} caption="Changes, newest first" id={(r) => r.number} href={(r) => `#/changes/${r.number}`} columns={[
          { name: "Change", cell: (r) => <><b>#{r.number}</b> {summary(r)}</> },
          { name: "Outcome", cell: (r) => <Outcome r={r} /> },
          { name: "When", cell: (r) => <Ago time={r.time} /> },
          { name: "Took", num: true, minor: true, cell: (r) => nanos(r.tookNanoseconds) },
          { name: "By", minor: true, cell: who },
        ]} /></Card>
      )}
      <Events />
    </>
  );
}

const mostEvents = 200;

// sameEvent reports whether an event is another one's repetition: it has a number of its own, and the same beginning.
const sameEvent = (a: NodeEvent, b: NodeEvent) => a.first === b.first && a.kind === b.kind && a.name === b.name && a.type === b.type && a.reason === b.reason;

// Events are what happened without a change, or kept one from being made: followed while the view is open.
function Events() {
  const all = useSignal<NodeEvent[]>([]);
  const lost = useSignal(0);
  useEffect(() => {
    const abort = new AbortController();
    let timer = 0;
    const follow = () => {
      let came: NodeEvent[] = [], fresh = true;
      const show = setInterval(() => { // what has come meanwhile, at once
        if (came.length === 0) return;
        const next = came.reverse();
        const old = fresh ? [] : all.value.filter((e) => !next.some((n) => sameEvent(n, e)));
        [all.value, came, fresh] = [[...next.filter((e, i) => next.findIndex((n) => sameEvent(n, e)) === i), ...old].slice(0, mostEvents), [], false];
      }, 200);
      lines<NodeEvent & { lost?: number; error?: string }>("v1/events?limit=50&follow=true", abort.signal, (e) => {
        if (e.lost) lost.value += e.lost;
        else if (e.number) came.push(e);
      }).catch(() => undefined).finally(() => {
        clearInterval(show);
        if (!abort.signal.aborted) timer = window.setTimeout(follow, 2000); // the agent has ended, or will answer again
      });
    };
    follow();
    return () => { abort.abort(); clearTimeout(timer); };
  }, []);
  return (
    <Card title="Events" extra={<code>kerb events --follow</code>}>
      {lost.value > 0 && <p class="result bad" role="alert"><Icon name="warn" />Events are missing: {lost.value} came faster than they were read, and the agent has forgotten them.</p>}
      <Table rows={all.value} caption="Events, newest first" id={(e) => e.number} columns={[
      { name: "Of", cell: (e) => <b>{e.kind.toLowerCase()}{e.name && `/${e.name}`}</b> },
      { name: "What", cell: (e) => <>{e.type} {e.reason}{e.count > 1 && `, ${e.count} times`}</> },
      { name: "When", cell: (e) => <Ago time={e.time} /> },
      { name: "Why", minor: true, cell: (e) => e.message },
    ]} />
    </Card>
  );
}

function ChangeView({ number }: { number: string }) {
  const record = useSignal<ChangeRecord | undefined>(undefined);
  const failed = useSignal("");
  useEffect(() => {
    send<ChangeRecord>(`v1/changes/${number}`).then((r) => { record.value = r; }).catch((e: Error) => { failed.value = e.message; });
  }, [number]);
  const r = record.value;
  if (failed.value) return <><Head title={`Change ${number}`} /><Empty title="This change cannot be shown">{failed.value}</Empty></>;
  if (!r) return <p class="loading">Reading the change</p>;
  return (
    <>
      <Head title={<>Change {r.number} <Outcome r={r} /></>} sub={<>{clock(r.time)} by {who(r)}, took {nanos(r.tookNanoseconds)}</>} command={`kerb changes ${r.number}`} />
      {r.error && <div class="banner warn"><Icon name="warn" size={20} /><div><strong>Refused: nothing was changed</strong><p>{r.error}</p></div></div>}
      {r.changes.map((c) => <Difference key={c.kind + c.name} c={c} />)}
      {(r.steps?.length ?? 0) > 0 && <Card title="Steps in the kernel"><ol class="plain">{r.steps!.map((s, i) => <li key={i}>{s}</li>)}</ol></Card>}
      {r.outcome === "done" && <Revert number={r.number} />}
    </>
  );
}

function text(v: unknown): string[] {
  return v === undefined || v === null ? [] : yaml(v);
}

function Difference({ c }: { c: Change }) {
  const lines = diff(text(c.before), text(c.after));
  return (
    <Card title={<>{c.action} {c.kind.toLowerCase()} {c.kind === "Module" ? <a href={`#/modules/${c.name}`}>{c.name}</a> : c.name}</>}>
      {lines.length === 0 ? <p class="note">The specification is the same.</p> : (
        <pre class="diff" tabIndex={0} aria-label={`Differences of ${c.name}`}>
          {lines.map((l, i) => <span key={i} class={l.sign === "+" ? "plus" : l.sign === "-" ? "minus" : ""}>{l.sign} {l.text}</span>)}
        </pre>
      )}
    </Card>
  );
}

// Revert takes a change back in two steps: first the agent says what would happen.
function Revert({ number }: { number: number }) {
  const plan = useSignal<ApplyResult | undefined>(undefined);
  const result = useSignal<{ ok: boolean; text: string } | undefined>(undefined);
  const busy = useSignal(false);
  const post = (query: string, done: (r: ApplyResult) => void) => {
    busy.value = true;
    send<ApplyResult>(`v1/changes/${number}/revert${query}`, "POST").then(done)
      .catch((e: Error) => { result.value = { ok: false, text: e.message }; })
      .finally(() => { busy.value = false; });
  };
  const dryRun = () => { result.value = undefined; post("?dryRun=true", (r) => { plan.value = r; }); };
  const revert = () => post("", (r) => {
    plan.value = undefined;
    result.value = { ok: true, text: `Change ${number} is reverted: ${r.changes.map((c) => `${c.kind.toLowerCase()}/${c.name} ${c.action}d`).join(", ")}.` };
  });
  if (!may.value.write) {
    return <Card title="Take it back"><p class="note">This page is read-only. On the command line: <code>kerb revert {number}</code>; or run <code>kerb ui --write</code>.</p></Card>;
  }
  return (
    <Card title="Take it back">
      {result.value && <p class={`result ${result.value.ok ? "ok" : "bad"}`} role="status" id="result"><Icon name={result.value.ok ? "ok" : "bad"} />{result.value.text}</p>}
      {!plan.value && <button type="button" class="button" id="dry-run" disabled={busy.value} onClick={dryRun}><Icon name="undo" />Show what a revert would do</button>}
      {plan.value && (
        <div id="plan">
          <p class="note">Nothing has changed yet. A revert would do this:</p>
          {plan.value.changes.map((c) => <Difference key={c.name} c={c} />)}
          <ol class="plain">{(plan.value.steps ?? []).map((s, i) => <li key={i}>{s}</li>)}</ol>
          {(plan.value.warnings ?? []).map((w) => <p class="result bad" key={w}><Icon name="warn" />{w}</p>)}
          <button type="button" class="button danger" id="revert" disabled={busy.value} onClick={revert}>Revert change {number}</button>{" "}
          <button type="button" class="button" onClick={() => { plan.value = undefined; }}>Cancel</button>
        </div>
      )}
    </Card>
  );
}
