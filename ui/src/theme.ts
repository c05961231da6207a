// SPDX-License-Identifier: Apache-2.0
import { effect, signal } from "@preact/signals";

const system = matchMedia("(prefers-color-scheme: dark)");
const chosen = signal<string | null>(localStorage.getItem("kerb-theme"));
const systemDark = signal(system.matches);
system.addEventListener("change", () => { systemDark.value = system.matches; });

// dark is what is shown: as the system has it, until the user chooses.
export const dark = signal(false);

effect(() => {
  dark.value = chosen.value ? chosen.value === "dark" : systemDark.value;
  document.documentElement.dataset["theme"] = dark.value ? "dark" : "light";
});

export function toggle(): void {
  chosen.value = dark.value ? "light" : "dark";
  localStorage.setItem("kerb-theme", chosen.value);
}
