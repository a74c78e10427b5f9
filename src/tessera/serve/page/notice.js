// What the page has to say about what went wrong.

/** A sentence above the results; `words in backticks` are commands. */
export function tell(text, retry) {
  const notice = document.getElementById("notice");
  notice.hidden = !text;
  const sentence = document.createElement("span");
  sentence.append(...(text.charAt(0).toUpperCase() + text.slice(1)).split("`").map((part, index) => {
    if (index % 2 === 0) return part;
    const code = document.createElement("code");
    code.textContent = part;
    return code;
  }));
  notice.replaceChildren(sentence);
  if (text && retry) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = "Try again";
    button.addEventListener("click", retry);
    notice.append(button);
  }
}
