// SPDX-License-Identifier: Apache-2.0
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { perSecond, short } from "./format";
import { dark } from "./theme";
import { history, state, times } from "./state";

export interface Line { key: string; name: string; color: string }

const span = 300; // seconds

// Chart draws rates of the last five minutes. Screen readers get the last values as text.
export function Chart({ lines, title, height = 190 }: { lines: Line[]; title: string; height?: number }) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot>(undefined);
  const data = (): uPlot.AlignedData => [times, ...lines.map((l) => history(l.key))] as uPlot.AlignedData;
  const shape = lines.map((l) => l.key).join() + dark.value;
  useEffect(() => {
    const at = box.current;
    if (!at) return;
    const style = getComputedStyle(at);
    const color = (name: string) => style.getPropertyValue(name).trim();
    const axis = { stroke: color("--c-text2"), grid: { stroke: color("--c-line"), width: 1 }, ticks: { show: false }, font: "12px system-ui" };
    const p = new uPlot({
      width: at.clientWidth, height, padding: [12, 8, 0, 0],
      cursor: { y: false, points: { size: 7 } }, legend: { show: false },
      scales: { x: { time: true, range: (_u, min, max) => [Math.max(max - span, Math.min(min, max - 60)), max] }, y: { range: (_u, _min, max) => [0, Math.max(1, (max ?? 1) * 1.1)] } },
      axes: [
        { ...axis, grid: { show: false }, size: 26, space: 110, values: (_u, all) => all.map((v) => new Date(v * 1000).toLocaleTimeString([], { hour12: false })) },
        { ...axis, size: 52, values: (_u, all) => all.map(short), space: 36 },
      ],
      series: [{}, ...lines.map((l) => ({ label: l.name, stroke: color(l.color), width: 2, fill: `${color(l.color)}22`, points: { show: false } }))],
    }, data(), at);
    plot.current = p;
    const fit = new ResizeObserver(() => p.setSize({ width: at.clientWidth, height }));
    fit.observe(at);
    return () => { fit.disconnect(); p.destroy(); };
  }, [shape]);
  const { time } = state.value;
  useEffect(() => { plot.current?.setData(data()); }, [time]);
  const last = (l: Line) => perSecond(history(l.key).at(-1) ?? 0);
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
