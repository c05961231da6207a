// SPDX-License-Identifier: Apache-2.0
// Views that packages declare: what a module's control plane answers, as tables, values and graphs. Everything in them
// comes from third parties, and is text.
import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import type { View, ViewField } from "../api";
import { Chart } from "../chart";
import { bytes, nanos, short } from "../format";
import { Card, plain, Plain, Table } from "../parts";
import type { Past } from "../past";
import { state } from "../state";
import { useRoute } from "./modules";

type Fields = Record<string, unknown>;

const mostRows = 200;
const every = 2000; // milliseconds
const kept = 150; // points of a graph
const colors = ["--c-accent", "--c-ok", "--c-warn", "--c-bad", "--c-text2"];

// dig returns a field of an answer: a.b of {a: {b: 1}}.
function dig(v: unknown, path = ""): unknown {
  return path.split(".").filter(Boolean).reduce<unknown>((o, key) => (o !== null && typeof o === "object" && Object.hasOwn(o, key) ? (o as Fields)[key] : undefined), v);
}

function rowsOf(v: unknown): Fields[] {
  if (v === null || typeof v !== "object") return [];
  const list = Array.isArray(v) ? v : (Object.values(v).find(Array.isArray) ?? [v]);
  return list.map((r: unknown) => (r !== null && typeof r === "object" && !Array.isArray(r) ? r as Fields : { value: r }));
}

const nameOf = (f: ViewField) => f.name || f.field;

function show(f: ViewField, v: unknown): string {
  if (typeof v !== "number") return plain(v);
  return f.unit === "bytes" ? bytes(v) : f.unit === "nanoseconds" ? nanos(v) : String(v);
}

function Rows({ view, value }: { view: View; value: unknown }) {
  const all = rowsOf(value), rows = all.slice(0, mostRows);
  if (all.length === 0) return <p class="note">There is nothing to show.</p>;
  return (
    <>
      {view.fields
        ? <Table rows={rows} caption={view.title} id={(r) => rows.indexOf(r)} columns={view.fields.map((f) => ({
          name: nameOf(f), num: rows.every((r) => typeof dig(r, f.field) === "number"), cell: (r: Fields) => show(f, dig(r, f.field)) }))} />
        : <Plain rows={rows} caption={view.title} />}
      {all.length > mostRows && <p class="note">The first {mostRows} of {all.length} are shown.</p>}
    </>
  );
}

function Values({ view, value }: { view: View; value: unknown }) {
  const fields = view.fields ?? Object.keys(value !== null && typeof value === "object" ? value : {}).slice(0, mostRows).map((name) => ({ field: name }));
  const of = (f: ViewField) => (view.fields ? dig(value, f.field) : (value as Fields)[f.field]);
  return (
    <Table rows={fields} caption={view.title} id={(f) => f.field} columns={[
      { name: "Name", cell: nameOf }, { name: "Value", cell: (f) => show(f, of(f)) }]} />
  );
}

// Series draws what the page has read since it was opened.
function Series({ view, value }: { view: View; value: unknown }) {
  const fields = view.fields ?? [];
  const counters = useRef<{ at: number; of: unknown[] }>({ at: 0, of: [] });
  const past = useSignal<Past>({ times: [], of: new Map(), why: "" });
  useEffect(() => {
    if (value === undefined) return;
    const at = Date.now() / 1000, last = counters.current, now = fields.map((f) => dig(value, f.field));
    const old = past.value, from = Math.max(0, old.times.length + 1 - kept);
    past.value = { times: [...old.times, at].slice(from), why: "", of: new Map(fields.map((f, i) => {
      const n = now[i], before = last.of[i];
      const rate = typeof n === "number" && typeof before === "number" && n >= before ? (n - before) / (at - last.at) : null;
      return [f.field, [...(old.of.get(f.field) ?? []), f.rate ? rate : typeof n === "number" ? n : null].slice(from)];
    })) };
    counters.current = { at, of: now };
  }, [value]);
  const unit = (field: string, n: number) => {
    const f = fields.find((other) => other.field === field);
    return (f?.unit ? show(f, Math.round(n)) : short(n)) + (f?.rate ? "/s" : "");
  };
  return <Chart title={view.title} height={150} past={past.value} span={kept * every / 1000} show={unit}
    lines={fields.map((f, i) => ({ key: f.field, name: nameOf(f), color: colors[i % colors.length]! }))} />;
}

const kinds = { table: Rows, values: Values, series: Series };

function OneView({ module, view, title }: { module: string; view: View; title: boolean }) {
  const { value, error } = useRoute<unknown>(`v1/modules/${module}/${view.query.split("/").map(encodeURIComponent).join("/")}`, every);
  const Kind = kinds[view.kind] ?? Rows;
  return (
    <Card title={<>{view.title}{title && <small> of <a href={`#/modules/${module}`}>{module}</a></small>}</>}>
      {error && <p class="note">{error}</p>}
      {value === undefined ? !error && <p class="note">Reading.</p> : <Kind view={view} value={dig(value, view.rows)} />}
    </Card>
  );
}

// Views are those of a module's package; title: with the module's name.
export function Views({ module, title }: { module: string; title: boolean }) {
  return <>{(state.value.modules.get(module)?.status?.views ?? []).map((v, i) => <OneView key={`${module} ${i} ${v.query}`} module={module} view={v} title={title} />)}</>;
}
