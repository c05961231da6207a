// SPDX-License-Identifier: Apache-2.0
// Long lists: the document has the rows near the screen and near the focus, and empty space for the others. The
// browser's search finds only what is in the document, so long lists have a search of their own.
import { useSignal } from "@preact/signals";
import type { ComponentChildren, RefObject } from "preact";
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";

const short = 60; // rows of a list that is in the document as a whole
const ahead = 600; // pixels above and below the screen of which the rows are in the document
const around = 3; // rows before and after the one with the focus: Tab gets there before any scrolling
const guess = 40; // pixels of a row, before any was measured

// Part is a row with its index, or the room of rows that are not in the document.
export type Part<T> = { row: T; index: number; room?: undefined } | { key: string; room: number };

interface Rows<T> { ref: RefObject<HTMLElement | null>; parts: Part<T>[] }

// useWindow returns the parts of a list, which scrolls with the page or by itself. Each row's element has its index in
// data-row, and is a child of ref. stop are the rows that arrow keys lead to: those next to the focus are in the document.
export function useWindow<T>(rows: T[], id: (row: T) => string | number, stop?: (row: T) => boolean): Rows<T> {
  const ref = useRef<HTMLElement | null>(null);
  const heights = useRef(new Map<string | number, number>()); // with the gap below
  const usual = useRef(0); // of rows that were never near the screen: as high as the first ones on average
  const gap = useRef(0);
  const now = useRef(rows);
  const range = useSignal({ from: 0, to: short });
  const long = rows.length > short;
  const focus = focused(ref.current, now.current);
  now.current = rows;
  const heightOf = (row: T) => heights.current.get(id(row)) ?? (usual.current || guess);
  const place = () => {
    const list = ref.current;
    if (!list || now.current.length <= short) return;
    measure(list, (index, height) => {
      const row = now.current[index];
      if (row !== undefined) heights.current.set(id(row), height);
    });
    if (heights.current.size > 4 * now.current.length) {
      const present = new Set(now.current.map(id));
      for (const key of heights.current.keys()) if (!present.has(key)) heights.current.delete(key);
    }
    gap.current = parseFloat(getComputedStyle(list).rowGap) || 0;
    usual.current ||= [...heights.current.values()].reduce((sum, h) => sum + h, 0) / heights.current.size || 0;
    const [from, to] = near(list);
    let at = 0, first = 0, end = 0;
    for (const row of now.current) {
      if (at >= to) break;
      at += heightOf(row);
      end++;
      if (at <= from) first++;
    }
    first = Math.max(0, Math.min(first, now.current.length - 1)); // one stays, at least
    if (first !== range.value.from || end !== range.value.to) range.value = { from: first, to: end };
  };
  useLayoutEffect(place);
  useEffect(() => {
    if (!long) return;
    const list = ref.current!;
    const moved = () => { range.value = { ...range.value }; };
    const resized = () => { heights.current.clear(); usual.current = 0; place(); };
    list.addEventListener("focusin", moved);
    addEventListener("scroll", place, { passive: true, capture: true }); // also of elements
    addEventListener("resize", resized);
    return () => { list.removeEventListener("focusin", moved); removeEventListener("scroll", place, true); removeEventListener("resize", resized); };
  }, [long]);
  if (!long) return { ref, parts: rows.map((row, index) => ({ row, index })) };
  const kept = focus === undefined ? -Infinity : rows.findIndex((row) => id(row) === id(focus));
  let before = kept - 1, after = kept + 1;
  while (stop && before >= 0 && !stop(rows[before]!)) before--;
  while (stop && kept >= 0 && after < rows.length && !stop(rows[after]!)) after++;
  const present = (i: number) => (i >= range.value.from && i < range.value.to) || Math.abs(i - kept) <= around || i === before || i === after;
  return { ref, parts: partsOf(rows, present, heightOf, gap.current) };
}

// near is the part of a list that is on the screen or near it, in pixels from its beginning.
function near(list: HTMLElement): [from: number, to: number] {
  if (getComputedStyle(list).overflowY === "auto") return [list.scrollTop - ahead, list.scrollTop + list.clientHeight + ahead];
  const top = list.getBoundingClientRect().top;
  return [-top - ahead, innerHeight - top + ahead];
}

// measure has the height of each row that another element follows.
function measure(list: HTMLElement, each: (index: number, height: number) => void) {
  for (const e of list.children) {
    const index = (e as HTMLElement).dataset.row, next = e.nextElementSibling;
    if (index && next) each(Number(index), next.getBoundingClientRect().top - e.getBoundingClientRect().top);
  }
}

// focused is the row that has the focus. It stays in the document: a keyboard would have to begin again.
function focused<T>(list: HTMLElement | null, rows: T[]): T | undefined {
  const at = document.activeElement?.closest<HTMLElement>("[data-row]");
  return at && list?.contains(at) ? rows[Number(at.dataset.row)] : undefined;
}

function partsOf<T>(rows: T[], present: (index: number) => boolean, heightOf: (row: T) => number, gap: number): Part<T>[] {
  const parts: Part<T>[] = [];
  let room = 0;
  const end = (key: string) => { // of which an element is the same one, so that those of rows are not moved
    if (room > 0) parts.push({ key, room: Math.max(0, room - gap) });
    room = 0;
  };
  rows.forEach((row, index) => {
    if (present(index)) {
      end(parts.length === 0 ? "above" : "between");
      parts.push({ row, index });
    } else room += heightOf(row);
  });
  end("below");
  return parts;
}

const searched = () => new URLSearchParams(location.hash.split("?")[1]).get("search") ?? "";

// Room is the space of rows that are not in the document.
export const Room = ({ height }: { height: number }) => <li class="room" aria-hidden="true" style={{ height: `${height}px` }} />;

// List is a list of any length. Its length and the position of each item are for screen readers.
export function List<T>({ rows, id, label, style, item, children }: {
  rows: T[]; id: (row: T) => string | number; label: string; style: string; item?: (row: T) => string; children: (row: T) => ComponentChildren;
}) {
  const { ref, parts } = useWindow(rows, id);
  return (
    <ul class={style} aria-label={label} ref={ref as RefObject<HTMLUListElement>}>
      {parts.map((p) => (p.room !== undefined ? <Room key={p.key} height={p.room} /> : (
        <li key={id(p.row)} class={item?.(p.row)} data-row={p.index} aria-posinset={p.index + 1} aria-setsize={rows.length}>{children(p.row)}</li>
      )))}
    </ul>
  );
}

// some are the first of names, and how many others there are.
export function some(names: string[], most = 20): string {
  return names.slice(0, most).join(", ") + (names.length > most ? ` and ${names.length - most} more` : "");
}

// useSearch keeps the rows of which a text has all words that are searched for. The address has them, so that a link
// restores what is shown.
export function useSearch<T>(rows: T[], text: (row: T) => string, what: string): { found: T[]; box: ComponentChildren } {
  const words = useSignal(searched());
  useEffect(() => {
    const read = () => { words.value = searched(); };
    addEventListener("hashchange", read);
    return () => removeEventListener("hashchange", read);
  }, []);
  const all = words.value.toLowerCase().split(/\s+/).filter(Boolean);
  const found = all.length === 0 ? rows : rows.filter((r) => { const t = text(r).toLowerCase(); return all.every((w) => t.includes(w)); });
  const search = (value: string) => {
    words.value = value;
    const view = location.hash.split("?")[0] || "#/health";
    history.replaceState(null, "", value ? `${view}?${new URLSearchParams({ search: value })}` : view);
  };
  const box = (rows.length > 12 || words.value !== "") && (
    <search class="search">
      <input type="search" value={words.value} placeholder="Search ( / )" aria-label={`Search ${what}`} onInput={(e) => search(e.currentTarget.value)} />
      <span class="note" role="status">{all.length > 0 && `${found.length.toLocaleString()} of ${rows.length.toLocaleString()}`}</span>
    </search>
  );
  return { found, box };
}

// The key / leads to the search of the view, if it has one.
export function focusSearch(e: KeyboardEvent): boolean {
  const box = document.querySelector<HTMLInputElement>(".search input");
  if (e.key !== "/" || !box) return false;
  e.preventDefault();
  box.focus();
  return true;
}
