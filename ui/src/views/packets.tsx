// SPDX-License-Identifier: Apache-2.0
import { useSignal } from "@preact/signals";
import type { RefObject } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { download, lines, send, type Explained, type Packet } from "../api";
import { Icon } from "../icons";
import { Card, Chip, Command, Empty, Head, Steps, verdictTone } from "../parts";
import { byName, state } from "../state";
import { chainsOf, dropped, placeOf, Times, walk } from "../waterfall";
import { Room, useWindow } from "../window";

const keep = 300;

export function PacketsView({ query }: { query: URLSearchParams }) {
  return (
    <>
      <Head title="Packets" sub="What happens to packets that come, and what would happen to one that does not" />
      <Trace query={query} />
      <Kept query={query} />
      <WhatIf query={query} />
    </>
  );
}

const mostOptions = 60; // of services to choose from; with more, a name is typed

function Services({ value, any }: { value: string; any: boolean }) {
  const typed = useSignal(value);
  if (state.value.services.size > mostOptions) {
    const names = [...state.value.services.keys()].filter((n) => n.includes(typed.value)).sort().slice(0, mostOptions);
    const list = any ? "any-service" : "one-service";
    return (
      <>
        <input name="service" list={list} defaultValue={value} required={!any} placeholder={any ? "any service" : "service"} aria-label="Service" size={16} onInput={(e) => { typed.value = e.currentTarget.value; }} />
        <datalist id={list}>{names.map((n) => <option key={n} value={n} />)}</datalist>
      </>
    );
  }
  return (
    <select name="service" aria-label="Service">
      {any && <option value="">any service</option>}
      {byName(state.value.services).map((s) => <option key={s.metadata.name} value={s.metadata.name} selected={s.metadata.name === value}>{s.metadata.name}</option>)}
    </select>
  );
}

function fields(form: HTMLFormElement): [string, string][] {
  return [...new FormData(form).entries()].map(([k, v]): [string, string] => [k, String(v).trim()]).filter(([, v]) => v !== "");
}

const quote = (v: string) => (/^[\w.:-]+$/.test(v) ? v : `'${v}'`);

function Trace({ query }: { query: URLSearchParams }) {
  const packets = useSignal<Packet[]>([]);
  const seen = useSignal(0);
  const running = useSignal(false);
  const failed = useSignal("");
  const only = useSignal(false);
  const command = useSignal(`kerb trace${query.get("service") ? ` --service ${query.get("service")}` : ""}`);
  const stop = useRef<AbortController>(undefined);
  useEffect(() => () => stop.current?.abort(), []);
  const start = (e: SubmitEvent) => {
    e.preventDefault();
    if (running.value) {
      stop.current?.abort();
      return;
    }
    const chosen = fields(e.currentTarget as HTMLFormElement);
    command.value = ["kerb trace", ...chosen.map(([k, v]) => k === "after" ? "--after" : `--${k === "slowerThan" ? "slower-than" : k} ${quote(v)}`)].join(" ");
    packets.value = [];
    seen.value = 0;
    failed.value = "";
    running.value = true;
    stop.current = new AbortController();
    const came: Packet[] = [];
    // At most five times a second, the list is what it was with the newest packets first.
    const show = setInterval(() => { if (came.length > 0) packets.value = [...came.splice(0).reverse(), ...packets.value].slice(0, keep); }, 200);
    lines<Packet & { error?: string; warning?: string; lost?: number }>(`v1/trace?${new URLSearchParams([...chosen, ["count", "5000"], ["seconds", "60"], ["bytes", "256"]])}`, stop.current.signal, (p) => {
      if (p.error || p.warning) failed.value = p.error ?? p.warning!;
      else if (p.lost) failed.value = `Packets are missing: ${p.lost} events came faster than they were read. A narrower filter loses none.`;
      else { came.push(p); seen.value++; }
    }).catch((err: Error) => { if (err.name !== "AbortError") failed.value = err.message; }).finally(() => {
      clearInterval(show);
      packets.value = [...came.reverse(), ...packets.value].slice(0, keep);
      running.value = false;
    });
  };
  const shown = packets.value.filter((p) => !only.value || dropped(p));
  return (
    <Card title="Live trace" extra={<Command text={command.value} />}>
      <form class="form" onSubmit={start} id="trace">
        <Services value={query.get("service") ?? ""} any={true} />
        <input name="host" placeholder="host address" aria-label="Host address" size={16} />
        <select name="protocol" aria-label="Protocol"><option value="">any protocol</option>{["tcp", "udp", "icmp", "icmpv6"].map((p) => <option key={p}>{p}</option>)}</select>
        <input name="port" placeholder="port" aria-label="Port" inputMode="numeric" pattern="[0-9]*" size={6} />
        <input name="slowerThan" placeholder="slower than 50us" aria-label="Slower than: a time such as 50us" size={16} />
        <button type="submit" class="button primary"><Icon name={running.value ? "stop" : "play"} />{running.value ? "Stop" : "Trace"}</button>
        <label title="What the kernel dropped after the last module, with its reason"><input type="checkbox" name="after" value="true" /> kernel drops</label>
        <label><input type="checkbox" checked={only.value} onChange={() => { only.value = !only.value; }} /> only dropped</label>
        <button type="button" class="button" id="capture" disabled={shown.length === 0} title="Save the packets below for Wireshark"
          onClick={() => void download("capture", shown.toReversed(), "kerb.pcapng").catch((err: Error) => { failed.value = err.message; })}>
          <Icon name="download" />Capture
        </button>
        <span class="note">{seen.value > 0 && `${seen.value} packets${seen.value > keep ? `, the last ${keep} are shown` : ""}`}</span>
      </form>
      {failed.value && <p class="result bad" role="alert"><Icon name="bad" />{failed.value}</p>}
      {packets.value.length === 0 && <p class="note">{running.value ? "Waiting for a matching packet." : "A trace takes up to a minute or 5,000 packets. Chains that are not traced cost nothing extra."}</p>}
      <Packets rows={shown} label="Packets, newest first" timed={() => true} />
    </Card>
  );
}

// Kept has the packets that chains keep without a trace: those that modules dropped, and slow ones with their times.
function Kept({ query }: { query: URLSearchParams }) {
  const packets = useSignal<Packet[] | undefined>(undefined);
  const failed = useSignal("");
  const slow = useSignal(false);
  const service = query.get("service") ?? "";
  const reading = useRef<AbortController>(undefined);
  const read = () => {
    const all: Packet[] = [];
    failed.value = "";
    reading.current?.abort(); // an older answer must not replace a newer one
    reading.current = new AbortController();
    lines<Packet>(`v1/trace?last=true&bytes=128&count=500${service && `&service=${encodeURIComponent(service)}`}`, reading.current.signal, (p) => { all.push(p); })
      .then(() => { packets.value = all.reverse(); }).catch((err: Error) => { if (err.name !== "AbortError") failed.value = err.message; });
  };
  useEffect(read, [service]);
  const shown = (packets.value ?? []).filter((p) => !slow.value || p.nanoseconds);
  return (
    <Card title="Last slow and dropped" extra={<Command text={`kerb trace --last${service && ` --service ${quote(service)}`}`} />}>
      <div class="form" id="dropped">
        <button type="button" class="button" onClick={read}>Read again</button>
        <label><input type="checkbox" checked={slow.value} onChange={() => { slow.value = !slow.value; }} /> only slow</label>
        <button type="button" class="button" disabled={shown.length === 0} title="Save the packets below for Wireshark"
          onClick={() => void download("capture", shown.toReversed(), "kerb-last.pcapng").catch((err: Error) => { failed.value = err.message; })}>
          <Icon name="download" />Capture
        </button>
        <span class="note">Kept without a trace: the last packets that modules dropped, as these left them, and measured packets that took long.</span>
      </div>
      {failed.value && <p class="result bad" role="alert"><Icon name="bad" />{failed.value}</p>}
      {packets.value && shown.length === 0 && <p class="note">No packet{service && ` of ${service}`} was {slow.value ? "slow" : "slow or dropped"}.</p>}
      <Packets name="kept" rows={shown} label="Slow and dropped packets, newest first" timed={(p) => Boolean(p.nanoseconds)} />
    </Card>
  );
}

// precise is a time of the day with milliseconds.
const precise = (time: string) => new Date(time).toLocaleTimeString(undefined, { hour12: false, hour: "2-digit", minute: "2-digit", second: "2-digit", fractionalSecondDigits: 3 });

const idOf = (p: Packet) => `${p.id} ${p.monotonic} ${p.time} ${p.interface}`;

// Packets is a list of packets, of any length. Those that are timed have a waterfall, which stays open while the document
// does not have its row.
function Packets({ rows, name, label, timed }: { rows: Packet[]; name?: string; label: string; timed: (p: Packet) => boolean }) {
  const open = useSignal<string[]>([]);
  const { ref, parts } = useWindow(rows, idOf, timed);
  return (
    <ol class="packets" id={name} aria-label={label} ref={ref as RefObject<HTMLOListElement>} onKeyDown={walk}>
      {parts.map((part) => {
        if (part.room !== undefined) return <Room key={part.key} height={part.room} />;
        const id = idOf(part.row);
        const toggle = (on: boolean) => { open.value = [...open.value.filter((o) => o !== id), ...(on ? [id] : [])]; };
        return (
          <li key={id} class={dropped(part.row) ? "dropped" : ""} data-row={part.index} aria-posinset={part.index + 1} aria-setsize={rows.length}>
            <Met p={part.row} />
            {timed(part.row) && <Times p={part.row} open={open.value.includes(id)} toggle={toggle} />}
          </li>
        );
      })}
    </ol>
  );
}

// Met is a packet at the chains that it met.
function Met({ p }: { p: Packet }) {
  return (
    <>
      {chainsOf(p).map((c, i) => (
        <div key={i}>
          <time>{precise(c.time)}</time>
          <span class="where">{i > 0 && "then "}{placeOf(c)}</span>
          <span class="tuple">{c.protocol} {c.source} &gt; {c.destination}{c.tcpFlags && ` [${c.tcpFlags}]`}{c.icmpType !== undefined && ` type ${c.icmpType}`}</span>
          <span class="len">{c.length} B{c.outcome !== "ok" && `, ${c.outcome}`}</span>
          <Steps steps={c.steps} />
          {c.kernelDrop && <span class="kernel">then kernel: <Chip tone="bad">dropped ({c.kernelDrop.reason})</Chip> {c.kernelDrop.function}</span>}
        </div>
      ))}
    </>
  );
}

function WhatIf({ query }: { query: URLSearchParams }) {
  const answer = useSignal<Explained | undefined>(undefined);
  const failed = useSignal("");
  const command = useSignal("kerb explain packet");
  const ask = (e: SubmitEvent) => {
    e.preventDefault();
    const asked = new URLSearchParams(fields(e.currentTarget as HTMLFormElement));
    command.value = `kerb explain packet '${asked.get("packet")}' --service ${asked.get("service")}`;
    answer.value = undefined;
    failed.value = "";
    send<Explained>(`v1/explain?${asked}`).then((v) => { answer.value = v; }).catch((err: Error) => { failed.value = err.message; });
  };
  const v = answer.value;
  const first = byName(state.value.services).find((s) => s.status?.addresses?.length)?.status?.addresses?.[0]?.split("/")[0] ?? "10.0.0.2";
  return (
    <Card title="What would happen to" extra={<Command text={command.value} />}>
      <form class="form" onSubmit={ask} id="whatif">
        <input name="packet" class="wide" required aria-label="Packet" placeholder={`tcp 198.51.100.7:40000 > ${first}:80 syn`} defaultValue={query.get("packet") ?? ""} />
        <Services value={query.get("service") ?? ""} any={false} />
        <button type="submit" class="button primary">Explain</button>
      </form>
      {failed.value && <p class="result bad" role="alert"><Icon name="bad" />{failed.value}</p>}
      {!v && !failed.value && <p class="note">Runs a packet through copies of the chains: nothing is sent, and no state changes.</p>}
      {v && (
        <div id="explained">
          <p class={`result ${v.verdict === "drop" ? "bad" : "ok"}`} role="status">
            <Icon name={v.verdict === "drop" ? "bad" : "ok"} />
            {v.verdict === "pass" ? "The packet passes." : <>The packet ends here: <Chip tone={verdictTone(v.verdict)}>{v.verdict}{v.reason && ` (${v.reason})`}</Chip> by {v.module}</>}
          </p>
          <ol class="packets">{v.packets.map((p, i) => <li key={i} class={dropped(p) ? "dropped" : ""}><Met p={p} /></li>)}</ol>
        </div>
      )}
      {v && v.packets.length === 0 && <Empty title="It meets no chain" />}
    </Card>
  );
}
