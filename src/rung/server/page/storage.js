// What this browser keeps: conversations in IndexedDB, preferences in localStorage. Where a browser keeps nothing
// (a private window may not) conversations live as long as the page, and `isKept` says so.
import { titleOf } from "./conversation.js";

const STORES = ["heads", "conversations"];

/** Whether conversations outlive the page. Known when the first call has returned. */
export let isKept = true;
const memory = new Map();

function promised(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

let opened = null;

function database() {
  opened ??= (async () => {
    const request = indexedDB.open("rung", 1);
    request.onupgradeneeded = () => STORES.forEach((name) => request.result.createObjectStore(name, { keyPath: "id" }));
    const found = await promised(request);
    found.onversionchange = () => found.close();
    return found;
  })().catch(() => {
    isKept = false;
    return null;
  });
  return opened;
}

/** Run `work` with both stores; return what it returns when all is written. */
async function transact(mode, work) {
  const transaction = (await database()).transaction(STORES, mode);
  const done = new Promise((resolve, reject) => {
    transaction.oncomplete = resolve;
    transaction.onabort = transaction.onerror = () => reject(transaction.error);
  });
  const result = await work(...STORES.map((name) => transaction.objectStore(name)));
  await done;
  return result;
}

const headOf = (conversation) => ({
  id: conversation.id,
  title: titleOf(conversation),
  updated: conversation.updated,
});

/** Return id, title and time of each conversation, latest first. */
export async function readHeads() {
  const isThere = await database();
  const found = isThere
    ? await transact("readonly", (heads) => promised(heads.getAll()))
    : Array.from(memory.values(), headOf);
  return found.sort((one, other) => other.updated - one.updated);
}

export async function readConversation(id) {
  if (!(await database())) return structuredClone(memory.get(id));
  return transact("readonly", (_, conversations) => promised(conversations.get(id)));
}

export async function readAll() {
  if (!(await database())) return [...memory.values()];
  return transact("readonly", (_, conversations) => promised(conversations.getAll()));
}

/** Write a conversation. Rejects where the browser has no room. */
export async function writeConversation(conversation) {
  const copy = structuredClone(conversation);
  if (!(await database())) return void memory.set(copy.id, copy);
  await transact("readwrite", async (heads, conversations) => {
    heads.put(headOf(copy));
    conversations.put(copy);
  });
  others.postMessage(copy.id);
}

export async function deleteConversation(id) {
  if (!(await database())) return void memory.delete(id);
  await transact("readwrite", async (heads, conversations) => {
    heads.delete(id);
    conversations.delete(id);
  });
  others.postMessage(id);
}

/** Return the ids of conversations that have `words` in their title or a message. */
export async function search(words) {
  const sought = words.toLowerCase();
  const has = (text) => text.toLowerCase().includes(sought);
  const matches = (one) => has(titleOf(one)) || Object.values(one.messages).some((message) => has(message.content));
  return new Set((await readAll()).filter(matches).map((one) => one.id));
}

const others = new BroadcastChannel("rung");

/** Call `listener` with the id of a conversation that another tab has changed. */
export function onChangeElsewhere(listener) {
  others.onmessage = ({ data }) => listener(data);
}

/** Return a preference, or `fallback` where there is none. */
export function readPreference(name, fallback, area = "localStorage") {
  try {
    return JSON.parse(window[area].getItem(`rung.${name}`)) ?? fallback;
  } catch {
    return fallback;
  }
}

/** Keep a preference; null forgets it. Where the browser keeps nothing it holds as long as the page. */
export function writePreference(name, value, area = "localStorage") {
  try {
    if (value === null) window[area].removeItem(`rung.${name}`);
    else window[area].setItem(`rung.${name}`, JSON.stringify(value));
  } catch {
    isKept = false;
  }
}
