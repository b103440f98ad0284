// Runs in an isolated world of each frame: it sees the document, and the page's scripts see neither it nor its
// objects. What it returns is still the page's text.
globalThis.cantle ??= (() => {
  const MAX_TEXT = 300, MAX_NODES = 200000, MAX_MS = 2000, MAX_DEPTH = 256;
  // Forms have elements as properties, whose names would hide those of Node.
  const getter = (name) => Object.getOwnPropertyDescriptor(Node.prototype, name).get;
  const firstChild = getter("firstChild"), nextSibling = getter("nextSibling"), contentOf = getter("textContent");
  const attribute = (element, name) => Element.prototype.getAttribute.call(element, name);
  const clean = (text, max = MAX_TEXT) => {
    text = String(text ?? "").slice(0, 4 * max).replace(/\s+/g, " ").trim();
    return text.length > max ? text.slice(0, max) + "…" : text;
  };

  const references = new WeakMap(), elements = new Map();
  let next = 1;
  const refer = (element) => {
    let number = references.get(element);
    if (number === undefined) {
      number = next++;
      references.set(element, number);
      elements.set(number, new WeakRef(element));
    }
    return number;
  };
  // The field of a file chooser, which a page need not add to its document.
  let fileField = null;
  const referFileField = (element, start) => {
    next = Math.max(next, start);
    fileField = element;
    return refer(element);
  };
  const resolve = (number) => {
    const element = elements.get(number)?.deref();
    return element?.isConnected || (element && element === fileField) ? element : null;
  };

  const ROLES = {
    ARTICLE: "article", ASIDE: "complementary", BUTTON: "button", DIALOG: "dialog", FIELDSET: "group", FORM: "form",
    H1: "heading", H2: "heading", H3: "heading", H4: "heading", H5: "heading", H6: "heading", IMG: "img",
    LI: "listitem", MAIN: "main", NAV: "navigation", OL: "list", OPTION: "option", PROGRESS: "progressbar",
    SELECT: "combobox", SUMMARY: "button", TABLE: "table", TD: "cell", TEXTAREA: "textbox", TH: "columnheader",
    TR: "row", UL: "list", VIDEO: "video", AUDIO: "audio", IFRAME: "iframe", CANVAS: "canvas",
  };
  const INPUTS = {
    button: "button", checkbox: "checkbox", color: "color", file: "file", image: "button", number: "spinbutton",
    radio: "radio", range: "slider", reset: "button", search: "searchbox", submit: "button",
  };
  const CONTROLS = new Set(["button", "checkbox", "color", "combobox", "file", "link", "menuitem", "menuitemcheckbox",
    "menuitemradio", "option", "radio", "searchbox", "slider", "spinbutton", "switch", "tab", "textbox", "treeitem"]);
  const NAMED_BY_CONTENT = new Set(["button", "link", "heading", "menuitem", "menuitemcheckbox", "menuitemradio",
    "option", "tab", "treeitem", "checkbox", "radio", "switch"]);

  const roleOf = (element) => {
    const explicit = clean(attribute(element, "role"), 30).split(" ")[0].toLowerCase();
    if (/^[a-z]+$/.test(explicit)) return explicit === "none" || explicit === "presentation" ? "" : explicit;
    const tag = element.tagName;
    if (tag === "INPUT") return INPUTS[element.type] ?? "textbox";
    if (tag === "A") return attribute(element, "href") === null ? "" : "link";
    if (element.isContentEditable && !element.parentElement?.isContentEditable) return "textbox";
    return ROLES[tag] ?? "";
  };
  const nameOf = (element, role) => {
    const byId = (id) => contentOf.call(element.getRootNode().getElementById?.(id) ?? document.createTextNode(""));
    const labelled = attribute(element, "aria-labelledby");
    const isInput = element instanceof HTMLInputElement;
    const candidates = [
      () => labelled && labelled.split(/\s+/).slice(0, 5).map(byId).join(" "),
      () => attribute(element, "aria-label"),
      () => element.labels && [...element.labels].slice(0, 3).map((label) => contentOf.call(label)).join(" "),
      () => attribute(element, "alt"),
      () => isInput && role === "button" && (element.value || element.type),
      () => NAMED_BY_CONTENT.has(role) && contentOf.call(element),
      () => NAMED_BY_CONTENT.has(role) && [...element.querySelectorAll("[alt], [aria-label]")].slice(0, 3)
        .map((child) => attribute(child, "aria-label") ?? attribute(child, "alt")).join(" "),
      () => attribute(element, "placeholder"),
      () => attribute(element, "title"),
      () => CONTROLS.has(role) && attribute(element, "name"),
    ];
    for (const candidate of candidates) {
      const name = clean(candidate() || "", 150);
      if (name) return name;
    }
    return "";
  };
  const statesOf = (element, role) => {
    const states = [];
    const aria = (name) => attribute(element, `aria-${name}`);
    if (/^H[1-6]$/.test(element.tagName)) states.push(`level=${element.tagName[1]}`);
    if (element.checked === true || aria("checked") === "true") states.push("checked");
    if (element.disabled === true || aria("disabled") === "true") states.push("disabled");
    if (element.required === true) states.push("required");
    if (aria("expanded")) states.push(aria("expanded") === "true" ? "expanded" : "collapsed");
    if (aria("selected") === "true" || element.selected === true) states.push("selected");
    if (element === document.activeElement && element !== document.body) states.push("focused");
    return states.map((state) => ` [${state}]`).join("");
  };
  const valueOf = (element, role) => {
    if (element instanceof HTMLSelectElement) {
      const options = [...element.options].slice(0, 20).map((option) => clean(option.label, 60));
      const chosen = [...element.selectedOptions].slice(0, 5).map((option) => clean(option.label, 60));
      const rest = element.options.length > 20 ? ", …" : "";
      return `: ${chosen.join(", ")} (options: ${options.join(", ")}${rest})`;
    }
    if (element.type === "password") return element.value ? ": (hidden)" : "";
    const isText = ["textbox", "searchbox", "spinbutton", "slider", "color"].includes(role);
    const value = isText ? clean(element.value ?? contentOf.call(element)) : "";
    return value && `: ${value}`;
  };

  // The children in the flat tree.
  function* childrenOf(node) {
    if (node instanceof HTMLSlotElement) {
      const assigned = node.assignedNodes();
      if (assigned.length) return yield* assigned;
    }
    const parent = (node instanceof Element && node.shadowRoot) || node;
    for (let child = firstChild.call(parent); child; child = nextSibling.call(child)) yield child;
  }

  const snapshot = ({ start, chars, scope, interactiveOnly }) => {
    next = Math.max(next, start);
    const root = scope === null ? document.body ?? document.documentElement : resolve(scope);
    if (!root) return null;
    const deadline = performance.now() + MAX_MS;
    const lines = [];
    let left = chars, nodes = 0, text = "", isCut = false;
    const emit = (depth, line) => {
      line = "  ".repeat(Math.min(depth, 12)) + "- " + line;
      left -= line.length + 1;
      if (left < 0) isCut = true;
      else lines.push(line);
    };
    const flush = (depth) => {
      const line = clean(text, 1000);
      text = "";
      if (line && !interactiveOnly) emit(depth, line);
    };
    const visit = (node, depth, level, isNamed, wasPointer) => {
      if (++nodes > MAX_NODES || level > MAX_DEPTH || ((nodes & 255) === 0 && performance.now() > deadline)) isCut = true;
      if (isCut) return;
      if (node.nodeType === Node.TEXT_NODE) {
        if (!isNamed && text.length < 4000) text += node.data.slice(0, 4000);
        return;
      }
      if (node.nodeType !== Node.ELEMENT_NODE) return;
      if (/^(SCRIPT|STYLE|NOSCRIPT|TEMPLATE|HEAD)$/.test(node.tagName)) return;
      if (attribute(node, "aria-hidden") === "true") return;
      const style = getComputedStyle(node);
      if (style.display === "none") return;
      const isVisible = style.visibility === "visible" || style.display === "contents";
      const isInline = /^(inline|contents)/.test(style.display);
      const role = isVisible ? roleOf(node) : "";
      const isPointer = style.cursor === "pointer";
      const acts = CONTROLS.has(role) || attribute(node, "onclick") !== null
        || (attribute(node, "tabindex") ?? "-1") >= "0" || (isPointer && !wasPointer && !isNamed);
      if (!isInline) flush(depth);
      let inner = depth, named = isNamed || !isVisible;
      if (isVisible && ((role && role !== "generic") || acts)) {
        const name = nameOf(node, role);
        const shown = interactiveOnly ? acts : acts || name || !["img", "form", "group", "canvas"].includes(role);
        if (shown) {
          flush(depth);
          const href = role === "link" ? ` (${clean(attribute(node, "href"), 120)})` : "";
          const reference = acts ? ` [ref=e${refer(node)}]` : "";
          emit(depth, (role || "clickable") + (name && ` ${JSON.stringify(name)}`) + statesOf(node, role) + reference
            + href + valueOf(node, role));
          inner = depth + 1;
          named ||= Boolean(name) && NAMED_BY_CONTENT.has(role);
        }
      }
      if (role === "textbox" || role === "combobox") return;
      for (const child of childrenOf(node)) {
        visit(child, inner, level + 1, named, isPointer);
        if (isCut) break;
      }
      if (!isInline || inner > depth) flush(inner);
      else if (node.tagName === "BR") text += " ";
    };
    visit(root, 0, 0, false, false);
    flush(0);
    return { lines, next, isCut };
  };

  // Brings an element into view to be clicked. Returns `done` if it was clicked, or why it can't be.
  const prepareClick = (element) => {
    element.scrollIntoView({ block: "center", inline: "center", behavior: "instant" });
    const boxes = [...element.getClientRects()].filter((box) => box.width > 0 && box.height > 0);
    if (!boxes.length) return "The element is not visible.";
    if (element.disabled) return "The element is disabled.";
    const x = boxes[0].x + boxes[0].width / 2, y = boxes[0].y + boxes[0].height / 2;
    const hit = element.getRootNode().elementFromPoint(x, y);
    if (!hit) return "The element is outside of the visible part of the page.";
    const label = hit.closest?.("label");
    if (element.contains(hit) || label?.control === element) return "";
    if (hit.contains(element)) {
      // A box that is hidden behind a drawn one can't be hit. One that ignores the mouse is what its parent makes of it.
      const isBox = element instanceof HTMLInputElement && ["checkbox", "radio"].includes(element.type);
      if (!isBox || getComputedStyle(element).pointerEvents === "none") return "";
      element.click();
      return "done";
    }
    const cover = roleOf(hit) || hit.tagName.toLowerCase();
    return `The element is covered by another: ${cover} ${JSON.stringify(clean(nameOf(hit, roleOf(hit)), 80))}.`;
  };

  const WITHOUT_TYPING = ["color", "date", "datetime-local", "month", "range", "time", "week"];
  const changed = (element) => {
    element.dispatchEvent(new Event("input", { bubbles: true }));
    element.dispatchEvent(new Event("change", { bubbles: true }));
  };
  // Focuses a field. Returns `type` if its text is to be typed, `file` if it is for files, `done` if it was set, or why
  // nothing of that is possible.
  const prepareInput = (element, text, clear) => {
    if (element.disabled || element.readOnly) return "The field is disabled or read-only.";
    if (element instanceof HTMLInputElement && element.type === "file") return "file";
    if (element instanceof HTMLSelectElement) {
      const wanted = text.trim().toLowerCase();
      const option = [...element.options].find((it) => [it.label, it.value].some((own) => own.trim().toLowerCase() === wanted));
      if (!option) return "No option has this label or value.";
      option.selected = true;
      changed(element);
      return "done";
    }
    if (element instanceof HTMLInputElement && WITHOUT_TYPING.includes(element.type)) {
      element.value = text;
      if (element.value !== text && element.type !== "range") return `The field takes values of the type ${element.type} only.`;
      changed(element);
      return "done";
    }
    const isText = element instanceof HTMLTextAreaElement || element.isContentEditable
      || (element instanceof HTMLInputElement && !(element.type in INPUTS && !["number", "search"].includes(element.type)));
    if (!isText) return "The element is not a text field.";
    element.scrollIntoView({ block: "center", behavior: "instant" });
    element.focus();
    const selection = getSelection();
    if (element.isContentEditable) {
      selection.selectAllChildren(element);
      if (!clear) selection.collapseToEnd();
    } else if (clear) element.select();
    // Fields for numbers and mail addresses have no selection range.
    else selection.modify("move", "forward", "documentboundary");
    if (clear) document.execCommand("delete");
    return "type";
  };

  const scroll = (distance) => {
    let target = document.elementFromPoint(innerWidth / 2, innerHeight / 2);
    const scrolls = (it) => it.scrollHeight > it.clientHeight + 1 && /auto|scroll/.test(getComputedStyle(it).overflowY);
    while (target && !scrolls(target)) target = target.parentElement;
    target ??= document.scrollingElement ?? document.documentElement;
    target.scrollBy({ top: distance, behavior: "instant" });
    return [target.scrollTop, target.clientHeight, target.scrollHeight].map(Math.round);
  };

  const find = (text) => {
    if (!window.find(text, false, false, true)) return null;
    const parent = getSelection().anchorNode?.parentElement;
    parent?.scrollIntoView({ block: "center", behavior: "instant" });
    return clean(parent ? contentOf.call(parent) : text);
  };

  return { find, prepareClick, prepareInput, referFileField, resolve, scroll, snapshot };
})();
