// SPDX-License-Identifier: Apache-2.0
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import type { ChangeRecord } from "./api";
import { perSecond, short } from "./format";
import { Ago, Card } from "./parts";
import { changesOf, hour, usePast, type Past } from "./past";
import { dark } from "./theme";
import { history, state, times } from "./state";

export interface Line { key: string; name: string; color: string }

// mark draws the numbers of changes where they were made.
function mark(u: uPlot, changes: ChangeRecord[], color: string): void {
  const { ctx, bbox } = u;
  ctx.save();
  ctx.strokeStyle = ctx.fillStyle = color;
  ctx.lineWidth = devicePixelRatio;
  ctx.setLineDash([4, 3]);
  ctx.font = `${11 * devicePixelRatio}px system-ui`;
  ctx.textAlign = "right";
  for (const c of changes) {
    const x = Math.round(u.valToPos(Date.parse(c.time) / 1000, "x", true));
    if (x < bbox.left || x > bbox.left + bbox.width) continue;
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    ctx.fillText(`#${c.number}`, x - 3, bbox.top + 10 * devicePixelRatio);
  }
  ctx.restore();
}

// Hour draws what the agent has sampled in the last hour, with the changes that were made meanwhile. names are the
// resources whose changes matter.
export function Hour({ lines, title, names }: { lines: Line[]; title: string; names?: string[] }) {
  const p = usePast();
  if (p.why) return <Card title={title}><p class="note">{p.why[0]!.toUpperCase() + p.why.slice(1)}</p></Card>;
  const changes = changesOf(p, names);
  return (
    <Card>
      <Chart title={title} height={150} lines={lines} past={p} changes={changes} />
      {changes.length > 0 && <p class="note marks">Changes: {changes.slice(0, 8).map((c) => <><a key={c.number} href={`#/changes/${c.number}`}>#{c.number}</a> <Ago time={c.time} /> </>)}</p>}
    </Card>
  );
}

// Chart draws rates: of the last five minutes, or of the past. Screen readers get the last values as text.
// span is in seconds; show has a value of a line as text.
export function Chart({ lines, title, height = 190, past, changes = [], span = past ? hour : 300, show = (_key, n) => perSecond(n) }: {
  lines: Line[]; title: string; height?: number; past?: Past; changes?: ChangeRecord[]; span?: number; show?: (key: string, n: number) => string;
}) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot>(undefined);
  const marked = useRef(changes);
  marked.current = changes;
  const least = span === hour ? hour : 60; // seconds
  const at = past?.times ?? times;
  const of = (key: string) => (past ? past.of.get(key) ?? at.map(() => null) : history(key));
  const data = (): uPlot.AlignedData => [at, ...lines.map((l) => of(l.key))] as uPlot.AlignedData;
  const shape = lines.map((l) => l.key).join() + dark.value;
  useEffect(() => {
    const on = box.current;
    if (!on) return;
    const style = getComputedStyle(on);
    const color = (name: string) => style.getPropertyValue(name).trim();
    const axis = { stroke: color("--c-text2"), grid: { stroke: color("--c-line"), width: 1 }, ticks: { show: false }, font: "12px system-ui" };
    const p = new uPlot({
      width: on.clientWidth, height, padding: [12, 8, 0, 0],
      cursor: { y: false, points: { size: 7 } }, legend: { show: false },
      scales: { x: { time: true, range: (_u, min, max) => [Math.max(max - span, Math.min(min, max - least)), max] }, y: { range: (_u, _min, max) => [0, Math.max(1, (max ?? 1) * 1.1)] } },
      axes: [
        { ...axis, grid: { show: false }, size: 26, space: 110, values: (_u, all) => all.map((v) => new Date(v * 1000).toLocaleTimeString([], { hour12: false })) },
        { ...axis, size: 52, values: (_u, all) => all.map(short), space: 36 },
      ],
      series: [{}, ...lines.map((l) => ({ label: l.name, stroke: color(l.color), width: 2, fill: `${color(l.color)}22`, points: { show: false } }))],
      hooks: { draw: [(u) => mark(u, marked.current, color("--c-text2"))] },
    }, data(), on);
    plot.current = p;
    const fit = new ResizeObserver(() => p.setSize({ width: on.clientWidth, height }));
    fit.observe(on);
    return () => { fit.disconnect(); p.destroy(); };
  }, [shape]);
  const newest = past ?? state.value.time;
  useEffect(() => { plot.current?.setData(data()); }, [newest, changes.length]);
  const last = (l: Line) => show(l.key, of(l.key).at(-1) ?? 0);
  return (
    <figure class="chart">
      <figcaption>
        <span>{title}</span>
        {lines.map((l) => <span class="key" key={l.key}><i class={l.color.slice(2)} />{l.name} <b>{last(l)}</b></span>)}
      </figcaption>
      <div ref={box} aria-hidden="true" />
    </figure>
  );
}
