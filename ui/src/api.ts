// SPDX-License-Identifier: Apache-2.0
// Types of the agent's API, as far as the page reads them: api/v1alpha1 has all of them, with their meaning.

export interface Condition { type: string; status: string; reason: string; message?: string; lastTransitionTime: string }
export interface Meta { name: string; labels?: Record<string, string>; generation?: number; owner?: string }
export interface Problem { kind: string; name?: string; type: string; reason: string; message?: string; since: string }
export interface Status {
  version: string; kernel: string; pid: number; uptime: string; modules: number; services: number; virtualServices: number;
  models: number; chains: number; attachPoints: number; memoryBytes: number; conditions: Condition[]; problems?: Problem[];
}
export interface Sampled { packets: number; p50Nanoseconds: number; p99Nanoseconds: number }
export interface VerdictCount { verdict: string; packets: number; bytes: number }
export interface Count {
  module: string; hook: string; direction: string; packets: number; bytes: number; verdicts?: VerdictCount[]; latency?: Sampled;
}
export interface Point { service?: string; interface: string; hook: string; direction: string; chain: string; cgroup?: string }
export interface Chain {
  id: string; hook: string; direction: string; modules: string[]; program: number; parts: number;
  points?: Point[]; ready?: boolean; latency?: Sampled; counts?: Count[];
}
export interface Drop { reason: string; packets: number; services?: { service: string; packets: number }[] }
export interface ChainCounts { id: string; latency?: Sampled; counts?: Count[] }
export interface ModuleDrops { module: string; drops?: Drop[] }
export interface ViewField { field: string; name?: string; unit?: "bytes" | "nanoseconds"; rate?: boolean }
export interface View { title: string; query: string; kind: "table" | "values" | "series"; rows?: string; fields?: ViewField[] }
export interface Module {
  metadata: Meta;
  spec: { package: string; attach: { services?: string; interfaces?: string[]; cgroups?: string[] }; budget?: { latency?: string; memory?: string } };
  status?: {
    conditions?: Condition[]; package: { name: string; version: string; digest: string }; attachments?: Point[]; memoryBytes: number;
    counts?: Count[]; drops?: Drop[]; views?: View[];
  };
}
export interface HookState { hook: string; mode: string; chain: string; program: number; modules: string[]; programs?: string[] }
export interface Service {
  metadata: Meta;
  spec: { netns?: string; pid?: number; interface?: string };
  status?: {
    conditions?: Condition[]; addresses?: string[]; sockets?: string[];
    links?: { interface: string; peer?: string; mtu: number; hooks?: HookState[] }[];
    drops?: { module: string; reason: string; packets: number }[];
  };
}
export interface VirtualService {
  metadata: Meta;
  spec: {
    addresses: { address: string; policy?: string; instance?: string }[];
    ports?: { port: number; targetPort?: number; protocol?: string }[];
  };
  status?: {
    conditions?: Condition[]; source: string; modules?: string[];
    instances?: { name: string; addresses?: string[]; service?: string; node?: string; draining?: boolean; ejected?: string; reason?: string }[];
  };
}
export interface Change { action: string; kind: string; name: string; before?: unknown; after?: unknown }
export interface ChangeRecord {
  number: number; time: string; by: string; owner: string; outcome: string; error?: string; repeated?: number; reverts?: number;
  tookNanoseconds: number; changes: Change[]; steps?: string[];
}
export interface NodeEvent {
  number: number; time: string; first: string; count: number; kind: string; name?: string; type: string; reason: string; message?: string;
}
export interface ApplyResult { dryRun: boolean; changes: Change[]; steps: string[]; warnings?: string[] }
export interface Step {
  module: string; verdict: string; reason?: string; note?: string; value?: number; name?: string; nanoseconds?: number; protocol?: string; source?: string; destination?: string; interface?: string;
  service?: string;
}
export interface Packet {
  id?: string; time: string; monotonic?: number; service?: string; interface: string; hook: string; direction: string; length: number; protocol: string;
  source?: string; destination?: string; tcpFlags?: string; icmpType?: number; icmpCode?: number; outcome: string; steps: Step[];
  nanoseconds?: number; kernelDrop?: { reason: string; function?: string }; linkType?: string; frame?: string; then?: Packet[];
}
export interface Explained { packets: Packet[]; verdict: string; module?: string; reason?: string }
export interface Flow {
  module: string; service?: string; interface: string; direction: string; protocol: string;
  source: string; destination: string; destinationPort?: number; sourceService?: string; destinationService?: string;
  packets: number; bytes: number; replyPackets: number; replyBytes: number;
  dropped?: number; replyDropped?: number; dropModule?: string; dropReason?: string;
}
export interface MissingFlows { others?: number; omitted?: number; unrecordedPackets?: number }
export interface FlowLine extends Partial<Flow> { missing?: MissingFlows; error?: string }
export interface Package {
  name: string; version: string; digest: string; source: string; description?: string; hooks: string[]; memoryBytes: number;
}
export interface Model {
  metadata: Meta;
  status?: {
    conditions?: Condition[]; modules?: string[];
    summary: { name: string; version: number; model: string; shape: string; extractor: string; classes?: string[]; digest: string; bytes: number };
  };
}

// send asks the agent, and throws what it says is wrong.
export async function send<T>(path: string, method = "GET", signal?: AbortSignal): Promise<T> {
  const answer = await fetch(path, { method, signal });
  const text = await answer.text();
  if (answer.ok) return JSON.parse(text) as T;
  let detail = text.trim();
  try {
    detail = (JSON.parse(text) as { detail?: string }).detail ?? detail;
  } catch {
    // it is no problem document
  }
  throw new Error(detail || `${answer.status} ${answer.statusText}`);
}

// download saves what the server makes of a body as a file.
export async function download(path: string, body: unknown, name: string): Promise<void> {
  const answer = await fetch(path, { method: "POST", body: JSON.stringify(body) });
  if (!answer.ok) throw new Error((await answer.text()).trim());
  const link = document.createElement("a");
  link.href = URL.createObjectURL(await answer.blob());
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000); // a download that has not begun yet would end
}

// lines reads a stream of JSON objects, one a line, until it ends or is aborted.
export async function lines<T>(path: string, abort: AbortSignal, each: (v: T) => void): Promise<void> {
  const answer = await fetch(path, { signal: abort });
  if (!answer.ok || !answer.body) throw new Error((await answer.text()).trim());
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const all = (rest + value).split("\n");
    rest = all.pop() ?? "";
    for (const line of all) if (line.trim()) each(JSON.parse(line) as T);
  }
}
