// SPDX-License-Identifier: Apache-2.0
import type { Packet } from "./api";
import { nanos, plural } from "./format";
import { Chip, verdictTone } from "./parts";

// chainsOf is a packet at all chains that it met.
export const chainsOf = (p: Packet) => [p, ...(p.then ?? [])];

export const placeOf = (p: Packet) => `${p.service ?? p.interface} ${p.direction}`;

export const dropped = (p: Packet) => chainsOf(p).some((c) => c.kernelDrop || c.steps.some((s) => s.verdict === "drop"));

const took = (c: Packet) => c.steps.reduce((sum, s) => sum + (s.nanoseconds ?? 0), 0);

// Waterfall has how long each module took with a packet, in a table of which the bars are a drawing. They show the modules
// one after the other: what is between two chains would leave nothing of them to see, and is in numbers.
function Waterfall({ p }: { p: Packet }) {
  const chains = chainsOf(p);
  const total = chains.reduce((sum, c) => sum + took(c), 0);
  let at = 0;
  return (
    <table class="waterfall">
      <caption>{nanos(total)} in modules of {plural(chains.length, "chain")}, with about 20 ns a module for the clock</caption>
      <thead class="hidden"><tr><th scope="col">Module</th><th scope="col">Verdict</th><th scope="col">Time</th></tr></thead>
      {chains.map((c, i) => {
        const before = chains[i - 1];
        return (
          <tbody key={i}>
            <tr><th scope="rowgroup" colSpan={4}>{placeOf(c)}<small> {c.hook}{before?.monotonic && c.monotonic &&
              `, ${nanos(Math.max(0, c.monotonic - before.monotonic - took(before)))} after ${placeOf(before)}, with the trace's own time`}</small></th></tr>
            {c.steps.map((s, k) => {
              const ns = s.nanoseconds ?? 0, from = at;
              at += ns;
              return (
                <tr key={k}>
                  <th scope="row">{s.module}</th>
                  <td><Chip tone={verdictTone(s.verdict)}>{s.verdict}{s.reason && ` (${s.reason})`}</Chip></td>
                  <td class="num">{nanos(ns)}</td>
                  <td class="line" aria-hidden="true">
                    <svg viewBox="0 0 100 1" preserveAspectRatio="none"><rect class={verdictTone(s.verdict)} x={(100 * from) / (total || 1)} width={(100 * ns) / (total || 1)} height="1" /></svg>
                  </td>
                </tr>
              );
            })}
          </tbody>
        );
      })}
    </table>
  );
}

// Times is a packet's waterfall, once it is opened.
export function Times({ p, open, toggle }: { p: Packet; open: boolean; toggle: (open: boolean) => void }) {
  return (
    <details class="times" open={open} onToggle={(e) => toggle(e.currentTarget.open)}>
      <summary>{nanos(chainsOf(p).reduce((sum, c) => sum + took(c), 0))}<span class="hidden"> in modules: show each</span></summary>
      {open && <Waterfall p={p} />}
    </details>
  );
}

// walk moves between the packets of a list with the arrow keys.
export function walk(e: KeyboardEvent) {
  const step = { ArrowDown: 1, ArrowUp: -1 }[e.key];
  const at = (e.target as Element).closest("summary");
  if (!step || !at) return;
  const all = [...(e.currentTarget as Element).querySelectorAll("summary")];
  all[all.indexOf(at) + step]?.focus();
  e.preventDefault();
}
