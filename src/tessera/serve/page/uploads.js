// Uploaded pictures, kept in the browser so that a reload and the back button find them. They are never sent but to search.

const KEPT = 10;
const held = new Map(); // number -> File
let opening = null;

function database() {
  opening ??= new Promise((resolve, reject) => {
    const request = indexedDB.open("tessera", 1);
    request.onupgradeneeded = () => request.result.createObjectStore("uploads");
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
  return opening;
}

async function change(work) {
  const transaction = (await database()).transaction("uploads", "readwrite");
  const asked = work(transaction.objectStore("uploads"));
  return new Promise((resolve, reject) => {
    transaction.oncomplete = () => resolve(asked?.result);
    transaction.onabort = transaction.onerror = () => reject(transaction.error);
  });
}

/** Read what an earlier visit left. A browser that keeps nothing (a private window) is no reason to stop. */
export async function load() {
  try {
    const numbers = await change((store) => store.getAllKeys());
    const files = await change((store) => store.getAll());
    numbers.forEach((number, place) => held.has(number) || held.set(number, files[place]));
  } catch (error) {
    console.warn("uploads are not kept:", error);
  }
}

export const has = (number) => held.has(number);
export const get = (number) => held.get(number);

/** Keep a file; its number, which an address may hold. The oldest go when there are many. */
export function add(file) {
  const number = Math.max(Date.now(), ...[...held.keys()].map((other) => other + 1));
  held.set(number, file);
  const old = [...held.keys()].sort((a, b) => a - b).slice(0, -KEPT);
  change((store) => {
    store.put(file, number);
    old.forEach((other) => store.delete(other));
  }).catch((error) => console.warn("an upload is not kept:", error));
  return number;
}
