// Adding pictures to the gallery, one after another, with the writer's key.

import { addImage } from "./api.js";
import { tell } from "./notice.js";

const NO_KEY = new Error("no key was given"); // its dialog was left
const element = (id) => document.getElementById(id);

/** askKey(): resolves with whether a key was given; done(): pictures are new. */
export function wireAdding({ askKey, done }) {
  element("add").addEventListener("click", () => element("add-files").click());
  element("add-files").addEventListener("change", async (event) => {
    const files = [...event.target.files];
    event.target.value = "";
    const failures = [];
    let added = 0;
    for (const file of files) {
      tell(`Adding ${added + failures.length + 1} of ${files.length}: ${file.name}`, null, true);
      try {
        await withKey(() => addImage(file), askKey);
        added += 1;
      } catch (error) {
        if (error === NO_KEY) break; // nor is it asked for again
        failures.push(`${file.name}: ${error.message}`);
      }
    }
    if (!added && !failures.length) return tell("");
    await done();
    tell([`${added} of ${files.length} added.`, ...failures].join(" "), null, !failures.length);
  });
}

async function withKey(work, askKey) {
  for (;;) {
    try {
      return await work();
    } catch (error) {
      if (error.status !== 401) throw error;
      if (!(await askKey())) throw NO_KEY;
    }
  }
}
