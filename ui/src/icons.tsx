// SPDX-License-Identifier: Apache-2.0

const paths: Record<string, string> = {
  health: "M3 12h4l3-7 4 14 3-7h4",
  services: "M4 4h16v6H4zM4 14h16v6H4zM8 7h.01M8 17h.01",
  changes: "M12 7v5l3 2M4 12a8 8 0 1 0 2.5-5.8M4 4v4h4",
  packets: "M12 3l8 4.5v9L12 21l-8-4.5v-9zM4 7.5l8 4.5 8-4.5M12 12v9",
  virtual: "M12 5v6M6 19v-3a2 2 0 0 1 2-2h8a2 2 0 0 1 2 2v3M12 11v3M10 3h4v4h-4zM4 19h4v2H4zM16 19h4v2h-4z",
  deadlines: "M12 21a8 8 0 1 0 0-16 8 8 0 0 0 0 16zM12 9v4l3 2M9 2h6",
  models: "M6 6l6 6-6 6M18 6l-6 6 6 6M5 6h.01M5 18h.01M19 6h.01M19 18h.01M12 12h.01",
  packages: "M4 8l8-4 8 4v8l-8 4-8-4zM4 8l8 4 8-4M8 6l8 4",
  map: "M5 6h4v4H5zM15 4h4v4h-4zM15 15h4v4h-4zM9 8l6-2M9 9l6 7",
  ok: "M5 13l4 4L19 7",
  warn: "M12 4l9 16H3zM12 10v4M12 17h.01",
  bad: "M12 21a9 9 0 1 0 0-18 9 9 0 0 0 0 18zM9 9l6 6M15 9l-6 6",
  sun: "M12 16a4 4 0 1 0 0-8 4 4 0 0 0 0 8zM12 2v2M12 20v2M2 12h2M20 12h2M5 5l1.5 1.5M17.5 17.5L19 19M19 5l-1.5 1.5M6.500 17.5L5 19",
  moon: "M20 14A8 8 0 1 1 10 4a7 7 0 0 0 10 10z",
  copy: "M9 9h10v11H9zM5 15V4h10",
  undo: "M4 9h10a5 5 0 0 1 0 10h-4M4 9l4-4M4 9l4 4",
  download: "M12 4v11M7 11l5 5 5-5M5 20h14",
  play: "M7 5l12 7-12 7z",
  stop: "M7 7h10v10H7z",
  right: "M9 6l6 6-6 6",
};

export function Icon({ name, size = 18 }: { name: string; size?: number }) {
  return (
    <svg width={size} height={size} viewBox="0 0 24 24" fill="none" stroke="currentColor" stroke-width="1.8"
      stroke-linecap="round" stroke-linejoin="round" aria-hidden="true">
      <path d={paths[name]} />
    </svg>
  );
}

// Mark is Kerb's: kerbstones, between which traffic runs.
export function Mark() {
  return (
    <svg class="mark" width="26" height="26" viewBox="0 0 24 24" aria-hidden="true">
      <rect x="2" y="3" width="9" height="5" rx="1.2" fill="currentColor" /><rect x="13" y="3" width="9" height="5" rx="1.2" fill="currentColor" />
      <rect x="2" y="16" width="9" height="5" rx="1.2" fill="currentColor" /><rect x="13" y="16" width="9" height="5" rx="1.2" fill="currentColor" />
      <path d="M3 12h18" stroke="var(--accent)" stroke-width="2.4" stroke-linecap="round" stroke-dasharray="5 3" />
    </svg>
  );
}
