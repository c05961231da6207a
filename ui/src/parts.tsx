// SPDX-License-Identifier: Apache-2.0
// Parts that several views are made of.
import { useSignal } from "@preact/signals";
import type { ComponentChildren, RefObject } from "preact";
import type { Condition, Problem, Step } from "./api";
import { ago, nanos } from "./format";
import { Icon } from "./icons";
import { history, state } from "./state";
import { useWindow } from "./window";

export type Tone = "ok" | "warn" | "bad" | "mute" | "info";

export function Chip({ tone, children, title }: { tone: Tone; children: ComponentChildren; title?: string }) {
  return <span class={`chip ${tone}`} title={title}>{children}</span>;
}

export function Ago({ time }: { time: string | number }) {
  return <time dateTime={new Date(time).toISOString()} title={new Date(time).toLocaleString()}>{ago(time, state.value.time || Date.now())}</time>;
}

// Command shows what does the same on the command line.
export function Command({ text }: { text: string }) {
  const copied = useSignal(false);
  const copy = () => {
    navigator.clipboard?.writeText(text).then(() => {
      copied.value = true;
      setTimeout(() => { copied.value = false; }, 1500);
    }).catch(() => undefined);
  };
  return (
    <button type="button" class="command" onClick={copy} title="Copy this command" aria-label={`Copy the command ${text}`}>
      <code>{text}</code><Icon name={copied.value ? "ok" : "copy"} size={14} />
    </button>
  );
}

export function Head({ title, sub, command, children }: { title: ComponentChildren; sub?: ComponentChildren; command?: string; children?: ComponentChildren }) {
  return (
    <header class="head">
      <div><h1>{title}</h1>{sub && <p>{sub}</p>}</div>
      <div class="actions">{children}{command && <Command text={command} />}</div>
    </header>
  );
}

export function Empty({ title, children }: { title: string; children?: ComponentChildren }) {
  return <div class="empty"><strong>{title}</strong><p>{children}</p></div>;
}

export function Card({ title, children, tone, extra }: { title?: ComponentChildren; children: ComponentChildren; tone?: Tone; extra?: ComponentChildren }) {
  return (
    <section class={`card ${tone ?? ""}`}>
      {title && <div class="card-head"><h2>{title}</h2>{extra}</div>}
      {children}
    </section>
  );
}

// Spark draws the history of a counter's rate, or other points; marks are where changes were made, from 0 to 1.
export function Spark({ of = "", all, marks = [], tone = "info", label }: { of?: string; all?: (number | null)[]; marks?: number[]; tone?: Tone; label: string }) {
  const points = all ?? history(of).slice(-60);
  const max = Math.max(1, ...points.map((p) => p ?? 0));
  const w = 120, h = 28, room = Math.max(20, points.length);
  let path = "", area = "", start = 0, last = 0;
  points.forEach((p, i) => {
    const x = (w * (i + room - points.length)) / (room - 1);
    if (p === null) return;
    const y = h - 2 - (p / max) * (h - 4);
    if (path === "" || points[i - 1] === null) { path += `M${x.toFixed(1)} ${y.toFixed(1)}`; if (!area) start = x; } else path += `L${x.toFixed(1)} ${y.toFixed(1)}`;
    area = path;
    last = x;
  });
  return (
    <svg class={`spark ${tone}`} viewBox={`0 0 ${w} ${h}`} preserveAspectRatio="none" role="img" aria-label={label}>
      {area && <path class="area" d={`${area}L${last.toFixed(1)} ${h}L${start.toFixed(1)} ${h}Z`} />}
      <path class="line" d={path} />
      <path class="mark" d={marks.map((m) => `M${(m * w).toFixed(1)} 0V${h}`).join("")} />
    </svg>
  );
}

// A minor column is left out on narrow screens.
export interface Column<T> { name: string; num?: boolean; minor?: boolean; cell: (row: T) => ComponentChildren }

const style = (c: { num?: boolean; minor?: boolean }) => `${c.num ? "num" : ""} ${c.minor ? "minor" : ""}`;

// Table is a list of things, of any length, of which a row may lead somewhere.
export function Table<T>({ rows, columns, href, caption, id }: {
  rows: T[]; columns: Column<T>[]; href?: (row: T) => string; caption: string; id: (row: T) => string | number;
}) {
  const { ref, parts } = useWindow(rows, id);
  return (
    <div class="scroll">
      <table aria-rowcount={rows.length + 1}>
        <caption class="hidden">{caption}</caption>
        <thead><tr aria-rowindex={1}>{columns.map((c) => <th scope="col" class={style(c)}>{c.name}</th>)}</tr></thead>
        <tbody ref={ref as RefObject<HTMLTableSectionElement>}>
          {parts.map((p) => (p.room !== undefined
            ? <tr key={p.key} class="room" aria-hidden="true"><td colSpan={columns.length} style={{ height: `${p.room}px` }} /></tr>
            : <TableRow key={id(p.row)} row={p.row} index={p.index} columns={columns} href={href} />))}
        </tbody>
      </table>
    </div>
  );
}

function TableRow<T>({ row, index, columns, href }: { row: T; index: number; columns: Column<T>[]; href?: (row: T) => string }) {
  return (
    <tr class={href ? "link" : ""} data-row={index} aria-rowindex={index + 2}>
      {columns.map((c, i) => <td class={style(c)}>{i === 0 && href ? <a class="row" href={href(row)}>{c.cell(row)}</a> : c.cell(row)}</td>)}
    </tr>
  );
}

// conditionTone: conditions are chosen so that False means trouble.
export function conditionTone(c: Condition): Tone {
  return c.status === "True" ? "ok" : c.status === "False" ? "bad" : "warn";
}

export function Conditions({ all }: { all?: Condition[] }) {
  return (
    <ul class="conditions">
      {(all ?? []).map((c) => (
        <li key={c.type}>
          <Chip tone={conditionTone(c)}><Icon name={c.status === "True" ? "ok" : "warn"} size={13} />{c.type}</Chip>
          <span class="reason">{c.reason}</span><span class="message">{c.message}</span>
        </li>
      ))}
    </ul>
  );
}

export function problemOf(kind: string, name: string): Problem | undefined {
  return state.value.status?.problems?.find((p) => p.kind === kind && p.name === name);
}

const tones: Record<string, Tone> = { next: "ok", pass: "ok", drop: "bad", reply: "info", redirect: "info" };

export function verdictTone(verdict: string): Tone { return tones[verdict] ?? "mute"; }

// Steps shows what modules did to a packet, in their order.
export function Steps({ steps }: { steps: Step[] }) {
  return (
    <ol class="steps">
      {steps.map((s, i) => (
        <li key={i}>
          <a href={`#/modules/${s.module}`}>{s.module}</a>
          <Chip tone={verdictTone(s.verdict)}>{s.verdict}{s.reason && ` (${s.reason})`}</Chip>
          {s.note && <span class="rewrite">{s.note} {s.name ?? s.value ?? 0}</span>}
          {s.nanoseconds && <span class="rewrite">{s.nanoseconds} ns</span>}
          {s.destination && <span class="rewrite">{s.source} &gt; {s.destination}</span>}
          {s.interface && <span class="rewrite">to {s.service ?? s.interface}</span>}
        </li>
      ))}
    </ol>
  );
}

interface Times { p50Nanoseconds: number; p99Nanoseconds: number; maxNanoseconds: number }

function isTimes(v: unknown): v is Times {
  return typeof v === "object" && v !== null && "p50Nanoseconds" in v && "p99Nanoseconds" in v && "maxNanoseconds" in v;
}

const maxDepth = 8; // of what is shown of a module's answer
const maxColumns = 64;

const timed = /Nanoseconds$/; // names of fields that are times

const field = (name: string, v: unknown, depth: number) => (timed.test(name) && typeof v === "number" ? nanos(v) : plain(v, depth));

// plain is a value of any kind as text.
export function plain(v: unknown, depth = 0): string {
  if (v === undefined || v === null) return "";
  if (isTimes(v)) return `p50 ${nanos(v.p50Nanoseconds)}, p99 ${nanos(v.p99Nanoseconds)}, max ${nanos(v.maxNanoseconds)}`;
  if (typeof v === "object" && depth >= maxDepth) return "...";
  if (typeof v === "object") return Array.isArray(v) ? v.map((x) => plain(x, depth + 1)).join(", ") : Object.entries(v).map(([k, x]) => `${k.replace(timed, "")} ${field(k, x, depth + 1)}`).join(", ");
  return String(v);
}

// Plain shows any list of a module's route: a column for each field.
export function Plain({ rows, caption }: { rows: Record<string, unknown>[]; caption: string }) {
  const names = [...new Set(rows.flatMap((r) => Object.keys(r).slice(0, maxColumns)))].slice(0, maxColumns);
  return (
    <Table rows={rows} caption={caption} id={(r) => rows.indexOf(r)}
      columns={names.map((name) => ({ name: name.replace(timed, ""), num: rows.every((r: Record<string, unknown>) => typeof r[name] === "number" || r[name] === undefined), cell: (r: Record<string, unknown>) => field(name, r[name], 0) }))} />
  );
}
