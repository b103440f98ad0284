// Prints what Mozilla's Readability makes of HTML files, as one JSON object.
const { readFileSync } = require("node:fs");
const { Readability } = require("@mozilla/readability");
const { parseHTML } = require("linkedom");

const texts = {};
for (const path of process.argv.slice(2)) {
  const article = new Readability(parseHTML(readFileSync(path, "utf8")).document).parse();
  if (article) texts[path] = article.textContent;
}
process.stdout.write(JSON.stringify(texts));
