// What is shown, as the part of the address behind "#": it is never sent to the service, and restores the page.

const MODEL = "model", VERB = "verb";

export function read() {
  const given = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
  const { [MODEL]: model, [VERB]: verb, ...values } = given;
  return { model, verb, values };
}

/** Without a step for the browser's "back": what was typed before is not another page. */
export function write({ model, verb, values = {} }) {
  const told = { [MODEL]: model, ...(verb ? { [VERB]: verb } : {}), ...values };
  history.replaceState(null, "", `#${new URLSearchParams(told)}`);
}

/** Whether the address is in the clipboard now: browsers give that only to pages of this machine, or with encryption. */
export async function copy() {
  try {
    await navigator.clipboard.writeText(location.href);
    return true;
  } catch {
    return false;
  }
}
