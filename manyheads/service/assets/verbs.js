// What can be tried, a verb each: its fields, what the service is asked, how the answer looks, where the heads look then.
// `run(card, values, desk)` asks with `desk.ask` and `desk.stream`, shows with `desk.show`, and looks with `desk.look`.

import { boxes, marked, percent, ranking, said } from "./results.js";

const text = (label, more = {}) => ({ name: "text", label, required: true, ...more });
const image = { name: "image", label: "Image", kind: "image", required: true };
const cut = { name: "cut", label: "cut texts that are too long", kind: "check" };

export const VERBS = {
  translate: {
    called: "Translate",
    fields: ({ languages }) => [text(languages ? `Text in ${called(languages[0])}` : "Text", { help: "Each line is translated separately." }), cut],
    async run(card, { text, cut }, desk) {
      const lines = text.split("\n").filter((line) => line.trim());
      if (!lines.length) return desk.show(said("Enter a text to translate."));
      const { results } = await desk.ask("nbest", { model: card.id, texts: lines, count: 3, truncate: Boolean(cut) });
      const look = (line, { text: target }) => desk.look({ text: line, ...(target ? { target } : {}) });
      desk.show(...results.flatMap((ranked, at) => [
        said(ranked[0].text),
        ranking(`${lines.length > 1 ? `Line ${at + 1}: c` : "C"}hoose one to look at; its log-probability`, ranked.map((each) => (
          { name: each.text || "(nothing)", said: each.log_probability.toFixed(2), choose: () => look(lines[at], each) }))),
      ]));
      look(lines[0], results[0][0]);
    },
  },
  classify: {
    called: "Classify",
    fields: ({ reads, pairs }) => (reads === "images" ? [image] : [text(pairs ? "First text" : "Text"), ...(pairs ? [{ name: "pair", label: "Second text" }] : []), cut]),
    async run(card, { text, pair, image, cut }, desk) {
      const asked = image !== undefined ? { images: [image] } : { texts: [text], ...(pair ? { pairs: [pair] } : {}), truncate: Boolean(cut) };
      const several = card.threshold !== null; // labels per item: all over the threshold are predicted
      const most = Math.min(several ? 1000 : 8, card.labels.length);
      const top = several || card.labels.length > 1 ? { top: most } : {}; // another model with one label predicts a number
      const { results: [ranked] } = await desk.ask("classify", { model: card.id, ...top, ...asked });
      if (ranked.length === 0 || ranked.value === null) return desk.show(said("Enter a text to classify."));
      if (ranked.value !== undefined) desk.show(said(ranked.value.toFixed(4)));
      else {
        const limits = several && typeof card.threshold === "object" ? card.threshold : null; // a threshold for each label
        const predicted = several ? ranked.filter(({ label, probability }) => probability >= (limits ? limits[label] : card.threshold)) : ranked.slice(0, 1);
        const ordered = [...predicted, ...ranked.filter((each) => !predicted.includes(each))].slice(0, Math.max(8, predicted.length));
        const rows = ordered.map(({ label, probability }) => ({ name: limits ? `${label} (from ${percent(limits[label])})` : label, value: probability }));
        if (several) rows.splice(predicted.length, 0, { name: limits ? "below their thresholds" : "threshold", said: limits ? "" : percent(card.threshold), mark: true });
        desk.show(said(predicted.map(({ label }) => label).join(", ") || "No label is over the threshold."), ranking(null, rows));
      }
      desk.look(image !== undefined ? { image } : { text, ...(pair ? { pair } : {}) });
    },
  },
  detect: {
    called: "Detect",
    fields: () => [image],
    async run(card, { image }, desk) {
      const { results: [found] } = await desk.ask("objects", { model: card.id, images: [image] });
      const rows = found.map(({ label, score }, at) => ({ name: label, value: score, choose: () => desk.point(at) }));
      const list = found.length ? ranking("Objects. Choose one to see where its query looks", rows) : said("No object has a score of 50% or more.");
      desk.show(await boxes(`data:image/png;base64,${image}`, found, desk.point), list);
      desk.look({ image });
    },
  },
  tag: {
    called: "Tag",
    fields: () => [text("Text")],
    async run(card, { text }, desk) {
      const { results: [{ words, entities }] } = await desk.ask("tag", { model: card.id, texts: [text] });
      const spans = (found, name) => found.map((each) => ({ ...each, kind: each[name], title: `${each[name]} ${percent(each.probability)}` }));
      const found = entities.length > 0; // of a tagger of parts of speech there are none
      desk.show(marked(text, found ? spans(entities, "kind") : spans(words, "tag")),
        ranking(found ? "Entities" : "Words", (found ? entities : words).map((each) => ({ name: `${each.text} · ${each.kind ?? each.tag}`, value: each.probability }))));
      desk.look({ text });
    },
  },
  answer: {
    called: "Answer",
    fields: () => [{ name: "question", label: "Question", kind: "line", required: true }, { name: "context", label: "Text that has the answer", rows: 7, required: true }],
    async run(card, { question, context }, desk) {
      const { results } = await desk.ask("answer", { model: card.id, question, context, nbest: 5 });
      const [best] = results;
      desk.show(best.text ? marked(context, [{ ...best, kind: "", title: percent(best.probability) }]) : said("There is no answer in this text."),
        ranking("Answers", results.map(({ text, probability }) => ({ name: text || "(no answer)", value: probability }))));
      desk.look({ text: question, pair: context });
    },
  },
  fill: {
    called: "Fill",
    fields: ({ mask }) => [text(`Text with ${mask}`, { insert: mask })],
    async run(card, { text }, desk) {
      const { results: [ranked] } = await desk.ask("fill", { model: card.id, texts: [text], top: 8 });
      desk.show(said(ranked[0].text), ranking("Words for the mask. Choose one to see its weights", ranked.map((each) => ({ name: each.token, value: each.probability, choose: () => desk.look({ text: each.text }) }))));
      desk.look({ text });
    },
  },
  generate: {
    called: "Complete",
    fields: () => [
      text("Beginning"),
      { name: "tokens", label: "Tokens", kind: "number", value: 60, min: 1, max: 1000, required: true },
      { name: "temperature", label: "Temperature", kind: "number", value: 0.8, min: 0, max: 2, step: "any", required: true },
      { name: "seed", label: "Seed", kind: "number", value: 1, min: 0, max: 2 ** 31, required: true },
    ],
    async run(card, { text, tokens, temperature, seed }, desk) {
      const prompt = String(text), written = el("span", { className: "written" }), next = el("div", {});
      desk.show(said(el("span", { className: "given" }, prompt), written), next);
      const told = ({ next: ranked }) => next.replaceChildren(ranking("Possible next tokens", ranked.map(({ token, probability }) => ({ name: token, value: probability }))));
      let shown = true; // until the text is longer than what is shown: to ask again with more of it would be in vain
      const look = () => { if (shown) desk.look({ text: prompt + written.textContent }, { live: true, told, refused: () => { shown = false; } }); };
      const body = { model: card.id, prompt, max_tokens: Number(tokens), temperature: Number(temperature), seed: Number(seed) };
      for await (const piece of desk.stream("v1/completions", body)) {
        if (!piece) continue;
        written.append(piece);
        look();
      }
      look();
    },
  },
  embed: {
    called: "Compare",
    fields: ({ reads }) => (reads === "images" ? [image, { ...image, name: "other", label: "Another image, to compare it with", required: false }]
      : [text("Text"), { name: "other", label: "Another text, to compare it with" }, cut]),
    async run(card, { text, image, other, cut }, desk) {
      const first = image ?? text;
      const { data } = await desk.ask("v1/embeddings", { model: card.id, input: other ? [first, other] : [first], ...(image ? {} : { truncate: Boolean(cut) }) });
      const [a, b] = data.map(({ embedding }) => embedding); // of length one
      const cosine = b?.reduce((sum, each, at) => sum + each * a[at], 0);
      desk.show(b ? ranking("Cosine similarity", [{ name: "similarity", value: cosine, said: cosine.toFixed(3) }]) : said(`A vector of ${a.length} numbers.`));
      desk.look(image ? { image } : { text });
    },
  },
  rerank: {
    called: "Rank",
    fields: () => [{ name: "query", label: "Query", kind: "line", required: true }, { name: "documents", label: "Documents, one per line", rows: 7, required: true }, cut],
    async run(card, { query, documents, cut }, desk) {
      const lines = documents.split("\n").filter((line) => line.trim());
      if (!lines.length) return desk.show(said("Enter one document per line."));
      const { results } = await desk.ask("v1/rerank", { model: card.id, query, documents: lines, truncate: Boolean(cut) });
      const look = (document) => desk.look({ text: query, ...(card.pairs ? { pair: document } : {}) });
      desk.show(ranking("Documents, the most relevant first", results.map(({ document: { text }, relevance_score: score }) => (
        { name: text, said: score.toFixed(3), choose: () => look(text) }))));
      look(results[0].document.text);
    },
  },
};

/** A language by its name in English, as far as the browser knows it. */
export function called(code) {
  try {
    return new Intl.DisplayNames("en", { type: "language" }).of(code);
  } catch {
    return code;
  }
}
