// Builds elements. Text always becomes a text node, so nothing that a job says is markup.

export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else if (name === 'class') element.className = value;
    else if (name === 'data') Object.assign(element.dataset, value);
    else if (name in element && typeof value !== 'string') element[name] = value;
    else element.setAttribute(name, value === true ? '' : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export function replace(element, ...children) {
  element.replaceChildren(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

// Makes `old` look like `fresh` and keeps its elements, so that a click or the focus is not lost when a page is updated under it. Elements keep
// their listeners; those with another data-act are exchanged.
export function morph(old, fresh) {
  if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName || old.dataset?.act !== fresh.dataset?.act) {
    old.replaceWith(fresh);
    return;
  }
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  for (const { name } of [...old.attributes]) if (name !== 'style' && !fresh.hasAttribute(name)) old.removeAttribute(name);
  for (const { name, value } of fresh.attributes) if (name !== 'style' && old.getAttribute(name) !== value) old.setAttribute(name, value);
  if (old.style && old.style.cssText !== fresh.style.cssText) old.style.cssText = fresh.style.cssText;
  const before = [...old.childNodes];
  const after = [...fresh.childNodes];
  after.forEach((child, i) => { if (i < before.length) morph(before[i], child); else old.append(child); });
  for (const child of before.slice(after.length)) child.remove();
}

// Like replace(), but keeps what is there already.
export function update(element, ...children) {
  const fresh = replace(element.cloneNode(false), ...children);
  morph(element, fresh);
  return element;
}

// When what was changed is on the screen; soon, when the window is hidden and nothing is drawn.
export function painted() {
  return new Promise((done) => {
    requestAnimationFrame(() => setTimeout(done));
    setTimeout(done, 300);
  });
}

const SVG = 'http://www.w3.org/2000/svg';

export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

// A value of the colour scheme, e.g. '--line'.
export function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

let toastTimer;
// `action`: {text, act} of a button beside the text.
export function toast(text, bad = false, action = null) {
  const box = document.getElementById('toast');
  replace(box, text, action && h('button', { type: 'button', onclick: () => { box.className = ''; action.act(); } }, action.text));
  box.className = bad ? 'shown bad' : 'shown';
  clearTimeout(toastTimer);
  toastTimer = setTimeout(() => { box.className = ''; }, bad ? 9000 : action ? 8000 : 4000);
}

// Copies a text. False where a browser lets no page do it: without HTTPS, except on this machine.
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false;
  }
}

export function save(blob, name) {
  const link = h('a', { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}
