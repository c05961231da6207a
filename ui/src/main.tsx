// SPDX-License-Identifier: Apache-2.0
import { computed, signal } from "@preact/signals";
import { render } from "preact";
import "./app.css";
import { ago } from "./format";
import { Icon, Mark } from "./icons";
import { connect, link, may, state } from "./state";
import { dark, toggle } from "./theme";
import { focusSearch } from "./window";
import { ChangesView } from "./views/changes";
import { HealthView } from "./views/health";
import { MapView } from "./views/map";
import { ModuleView, PackagesView } from "./views/modules";
import { PacketsView } from "./views/packets";
import { DeadlinesView, ModelsView } from "./views/routes";
import { ServiceView, ServicesView } from "./views/services";
import { VirtualView } from "./views/virtual";

// The address has the view and what it shows, so that a link restores it.
const place = signal(location.hash);
addEventListener("hashchange", () => {
  place.value = location.hash;
  document.getElementById("main")?.focus({ preventScroll: true });
  scrollTo(0, 0);
});
const route = computed(() => {
  const [path = "", query = ""] = place.value.replace(/^#\/?/, "").split("?");
  const [view = "", name = ""] = path.split("/");
  return { view: view || "health", name: decodeURIComponent(name), query: new URLSearchParams(query) };
});

const views = ["health", "services", "map", "changes", "packets", "virtual", "deadlines", "models", "packages"];
const names: Record<string, string> = { virtual: "Virtual services" };
const title = (view: string) => names[view] ?? view[0]!.toUpperCase() + view.slice(1);

function View() {
  const { view, name, query } = route.value;
  switch (view) {
    case "services": return name ? <ServiceView name={name} /> : <ServicesView />;
    case "map": return <MapView />;
    case "modules": return <ModuleView name={name} />;
    case "changes": return <ChangesView number={name} />;
    case "packets": return <PacketsView query={query} />;
    case "virtual": return <VirtualView />;
    case "deadlines": return <DeadlinesView />;
    case "models": return <ModelsView />;
    case "packages": return <PackagesView />;
  }
  return <HealthView />;
}

function Live() {
  const { kind } = link.value;
  const text = { starting: "connecting", live: "live", agent: "agent down", ended: "ended" }[kind];
  return <span class={`live ${kind}`} role="status"><i />{text}</span>;
}

// Lost says what the page cannot know now, and what it means for traffic.
function Lost() {
  const { kind, error, since } = link.value;
  if (kind === "agent") {
    return (
      <div class="banner bad" role="alert" id="lost">
        <Icon name="bad" size={22} />
        <div><strong>The agent does not answer, since {ago(since, Date.now())}.</strong>
          <p>Packets still pass the modules, which are in the kernel. What you see is the last known state. {error}</p></div>
      </div>
    );
  }
  if (kind === "ended") {
    return (
      <div class="banner warn" role="alert" id="lost">
        <Icon name="warn" size={22} />
        <div><strong>The command kerb ui has ended.</strong><p>Run it again, and open the address that it prints.</p></div>
      </div>
    );
  }
  return null;
}

function App() {
  const status = state.value.status;
  const problems = status?.problems?.length ?? 0;
  const { view } = route.value;
  return (
    <div class={`app is-${link.value.kind}`}>
      <a class="skip" href="#main" onClick={(e) => { e.preventDefault(); document.getElementById("main")?.focus(); }}>Skip to the content</a>
      <header class="top">
        <a class="brand" href="#/health" aria-label="Kerb, health"><Mark /><b>Kerb</b></a>
        <span class="node">{status && <>{status.version} <i>·</i> Linux {status.kernel} <i>·</i> up {status.uptime}</>}</span>
        <span class="right">
          <span class={`mode ${may.value.write ? "write" : ""}`}>{may.value.write ? "can revert" : "read-only"}</span>
          <Live />
          <button type="button" class="icon" onClick={toggle} aria-label={dark.value ? "Light colours" : "Dark colours"}><Icon name={dark.value ? "sun" : "moon"} /></button>
        </span>
      </header>
      <nav aria-label="Views">
        {views.map((v) => (
          <a key={v} href={`#/${v}`} aria-current={v === view ? "page" : undefined}>
            <Icon name={v} /><span>{title(v)}</span>
            {v === "health" && problems > 0 && <em>{problems}</em>}
          </a>
        ))}
      </nav>
      <main id="main" tabIndex={-1}>
        <Lost />
        {status ? <View /> : <p class="loading">{link.value.kind === "starting" ? "Reading the state of the node" : ""}</p>}
      </main>
    </div>
  );
}

connect();
// The keys 1 to 9 open the views, as Tab and Enter do, and / leads to the search of one.
addEventListener("keydown", (e) => {
  if (e.target instanceof HTMLInputElement || e.target instanceof HTMLSelectElement || e.ctrlKey || e.metaKey || e.altKey) return;
  if (focusSearch(e)) return;
  const to = views[Number(e.key) - 1];
  if (to) location.hash = `#/${to}`;
});
render(<App />, document.getElementById("app")!);
