/* Renders the little Markdown that answers hold: paragraphs, lists, headings, quotes, code, bold and
 * italics. It makes elements and text nodes only, so that no answer becomes markup. */
"use strict";

const markdown = (() => {
  const element = (name, ...children) => {
    const made = document.createElement(name);
    made.append(...children);
    return made;
  };

  /* `code`, **bold**, *italics*; what is not closed stays text. */
  const spans = /(`+)([^`](?:.*?[^`])?)\1(?!`)|\*\*(\S(?:.*?\S)?)\*\*|\*(\S(?:[^*]*?\S)?)\*/g;
  function inline(text) {
    const nodes = [];
    let last = 0;
    for (const match of text.matchAll(spans)) {
      nodes.push(text.slice(last, match.index));
      if (match[2] !== undefined) nodes.push(element("code", match[2]));
      else if (match[3] !== undefined) nodes.push(element("strong", ...inline(match[3])));
      else nodes.push(element("em", match[4]));
      last = match.index + match[0].length;
    }
    nodes.push(text.slice(last));
    return nodes;
  }

  const withBreaks = (lines) =>
    lines.flatMap((line, i) => [...(i ? [element("br")] : []), ...inline(line)]);

  const starts = /^\s{0,3}(```|~~~|#{1,6}\s|>|[-*+]\s|\d{1,9}[.)]\s)/;
  const bullet = /^\s{0,7}[-*+]\s+/, number = /^\s{0,7}(\d{1,9})[.)]\s+/;

  function takeCode(lines) {
    const fence = lines.shift().trim().slice(0, 3), code = [];
    while (lines.length && !lines[0].trim().startsWith(fence)) code.push(lines.shift());
    lines.shift();
    return element("pre", element("code", code.join("\n")));
  }

  function takeList(lines, mark, name) {
    const list = element(name);
    if (name === "ol") list.start = Number(number.exec(lines[0])[1]);
    while (lines.length && mark.test(lines[0])) {
      const item = [lines.shift().replace(mark, "")];
      while (lines.length && /^\s{2,}\S/.test(lines[0]) && !bullet.test(lines[0]) && !number.test(lines[0]))
        item.push(lines.shift().trim());
      list.append(element("li", ...withBreaks(item)));
      if (lines.length > 1 && !lines[0].trim() && mark.test(lines[1])) lines.shift();
    }
    return list;
  }

  function takeBlock(lines) {
    const line = lines[0];
    if (/^\s{0,3}(```|~~~)/.test(line)) return takeCode(lines);
    if (/^\s{0,3}#{1,6}\s/.test(line))
      return element("h3", ...inline(lines.shift().replace(/^\s*#+\s+/, "")));
    if (bullet.test(line)) return takeList(lines, bullet, "ul");
    if (number.test(line)) return takeList(lines, number, "ol");
    const block = [lines.shift()], quote = /^\s{0,3}>\s?/;
    if (quote.test(line)) {
      while (lines.length && quote.test(lines[0])) block.push(lines.shift());
      return element("blockquote", ...withBreaks(block.map((l) => l.replace(quote, ""))));
    }
    while (lines.length && lines[0].trim() && !starts.test(lines[0])) block.push(lines.shift());
    return element("p", ...withBreaks(block));
  }

  return (text) => {
    const lines = text.split("\n"), blocks = [];
    while (lines.length) {
      if (lines[0].trim()) blocks.push(takeBlock(lines));
      else lines.shift();
    }
    return blocks;
  };
})();
