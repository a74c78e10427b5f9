// What the page has to say, and what went wrong.

export const plural = (count, one, many = `${one}s`) => `${count.toLocaleString()} ${count === 1 ? one : many}`;

/** A sentence of the service's as nodes; `words in backticks` are commands. */
export function sentence(text) {
  return (text.charAt(0).toUpperCase() + text.slice(1)).split("`").map((part, index) => {
    if (index % 2 === 0) return part;
    const code = document.createElement("code");
    code.textContent = part;
    return code;
  });
}

/** A sentence above the results. fine: it tells of work that is done, and warns of nothing. */
export function tell(text, retry, fine = false) {
  const notice = document.getElementById("notice");
  notice.hidden = !text;
  notice.classList.toggle("fine", fine);
  const said = document.createElement("span");
  said.append(...sentence(text));
  notice.replaceChildren(said);
  if (text && retry) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = "Try again";
    button.addEventListener("click", retry);
    notice.append(button);
  }
}
