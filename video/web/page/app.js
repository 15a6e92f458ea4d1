// The page of fre-video: uploads by tus 1.0, follows the work, plays by hls.js.
"use strict";
const $ = (id) => document.getElementById(id);
const pieceBytes = 8 << 20;

async function api(path, options) {
  const answer = await fetch(path, options);
  if (!answer.ok) {
    const body = await answer.json().catch(() => null);
    throw new Error(body?.error?.message ?? `${answer.status} ${answer.statusText}`);
  }
  return answer;
}

function element(name, text, attributes = {}) {
  const e = document.createElement(name);
  e.textContent = text;
  return Object.assign(e, attributes);
}

// upload sends a file, and goes on behind what has arrived where a request fails.
async function upload(file) {
  const tus = { "Tus-Resumable": "1.0.0" };
  const name = btoa(String.fromCharCode(...new TextEncoder().encode(file.name)));
  const created = await api("v1/uploads/", { method: "POST", headers: { ...tus, "Upload-Length": file.size, "Upload-Metadata": `filename ${name}` } });
  const url = "v1/uploads/" + created.headers.get("Location").split("/").pop();
  let at = 0;
  for (let failures = 0; at < file.size;) {
    show(at / file.size);
    try {
      const piece = file.slice(at, at + pieceBytes);
      const answer = await api(url, { method: "PATCH", headers: { ...tus, "Upload-Offset": at, "Content-Type": "application/offset+octet-stream" }, body: piece });
      at = Number(answer.headers.get("Upload-Offset"));
      failures = 0;
    } catch (problem) {
      if (++failures > 10) throw problem;
      await new Promise((done) => setTimeout(done, Math.min(100 * 2 ** failures, 5000)));
      at = await api(url, { method: "HEAD", headers: tus }).then((a) => Number(a.headers.get("Upload-Offset")), () => at);
    }
  }
}

function show(part) {
  $("transfer").hidden = false;
  $("sent").value = part;
  $("sent-text").textContent = `${Math.round(100 * part)} %`;
}

async function take(file) {
  if (!file) return;
  try {
    await upload(file);
    $("transfer").hidden = true;
  } catch (problem) {
    $("sent-text").textContent = `The upload has failed: ${problem.message}`;
  }
  list();
}

$("file").onchange = (e) => take(e.target.files[0]);
$("drop").ondragover = (e) => { e.preventDefault(); $("drop").classList.add("over"); };
$("drop").ondragleave = () => $("drop").classList.remove("over");
$("drop").ondrop = (e) => { e.preventDefault(); $("drop").classList.remove("over"); take(e.dataTransfer.files[0]); };

// list shows the assets, and comes again while one of them is worked on.
let timer;
async function list() {
  clearTimeout(timer);
  let assets, streams;
  try {
    [{ assets }, { streams }] = await Promise.all(["v1/assets", "v1/live"].map(async (path) => (await api(path)).json()));
  } catch {
    timer = setTimeout(list, 2000);
    return;
  }
  $("none").hidden = assets.length > 0;
  fill($("assets"), assets, row);
  $("live").hidden = streams.length === 0;
  fill($("streams"), streams, streamRow);
  timer = setTimeout(list, assets.some((a) => a.state === "uploading" || a.state === "working") ? 500 : 5000);
}

// fill shows a row for each item. It does nothing if no item has changed, because a new row
// would lose the focus.
function fill(body, all, row) {
  const text = JSON.stringify(all);
  if (body.shown === text) return;
  body.shown = text;
  body.replaceChildren(...all.map(row));
}

// button makes a button that calls a function and shows its error.
const button = (text, onclick, title = "") => element("button", text, { title, onclick: async () => {
  try {
    await onclick();
  } catch (problem) {
    $("said").textContent = problem.message;
  }
} });

function row(a) {
  const tr = document.createElement("tr");
  tr.dataset.id = a.id;
  const state = element("td", a.state, { className: a.state });
  if (a.jobs?.all) state.append(" ", element("progress", "", { max: a.jobs.all, value: a.jobs.done }));
  for (const words of [a.jobs?.waits, a.error, ...(a.warnings ?? [])]) if (words) state.append(element("span", words, { className: "words" }));
  const tools = document.createElement("td");
  if (a.state === "ready") tools.append(button("Play", () => play(a.name, a.hls)), " ", ...copies({ HLS: a.hls, DASH: a.dash }));
  if (a.state === "failed") tools.append(button("Retry", () => api(`v1/assets/${a.id}/retry`, { method: "POST" }).then(list)), " ");
  tools.append(button("Delete", () => remove(`v1/assets/${a.id}`, `Delete ${a.name}?`)));
  tr.append(thumbnail(a), element("td", a.name), state, element("td", a.duration ? length(a.duration) : ""), tools);
  return tr;
}

function streamRow(s) {
  const tr = document.createElement("tr");
  const state = element("td", s.state, { className: s.state });
  if (s.error) state.append(element("span", s.error, { className: "words" }));
  const tools = document.createElement("td");
  if (s.tracks) tools.append(button("Play", () => play(s.name, s.hls)), " ");
  tools.append(...copies({ HLS: s.hls, DASH: s.dash, server: s.obs?.server, key: s.obs?.key }), button("Delete", () => remove(`v1/live/${s.name}`, `End the live stream ${s.name}?`)));
  tr.append(element("td", s.name), state, element("td", s.loop ? `video ${s.loop}` : s.publisher ?? "a publisher"), tools);
  return tr;
}

// thumbnail returns the picture in the middle of a video.
function thumbnail(a) {
  const td = element("td", "", { className: "picture" });
  const t = a.thumbnails;
  if (!t || !a.thumbnails_vtt) return td;
  const n = Math.floor(t.count / 2), on = n % (t.columns * t.rows), scale = Math.min(96 / t.width, 54 / t.height);
  const image = element("img", "", { alt: "", loading: "lazy", src: a.thumbnails_vtt.replace(/thumbnails\.vtt$/, `thumbs/${Math.floor(n / (t.columns * t.rows))}.jpg`) });
  image.style.transform = `scale(${scale}) translate(${-(on % t.columns) * t.width}px, ${-Math.floor(on / t.columns) * t.height}px)`;
  const box = element("div", "", { className: "thumb" });
  box.style.width = `${t.width * scale}px`;
  box.style.height = `${t.height * scale}px`;
  box.append(image);
  td.append(box);
  return td;
}

// copies returns a button to copy each address that the object has.
function copies(addresses) {
  return Object.entries(addresses).filter(([, at]) => at).flatMap(([name, at]) => [button(`Copy ${name}`, async () => {
    const text = at.startsWith("/") ? new URL(at, location.href).href : at;
    if (navigator.clipboard) await navigator.clipboard.writeText(text);
    else { // without TLS, away from localhost
      const field = element("textarea", text);
      document.body.append(field);
      field.select();
      const copied = document.execCommand("copy");
      field.remove();
      if (!copied) throw new Error(`Copy it by hand: ${text}`);
    }
    $("said").textContent = `Copied: ${text}`;
  }, at), " "]);
}

// remove asks first.
function remove(path, question) {
  const sure = $("sure");
  $("question").textContent = question;
  sure.returnValue = "";
  sure.onclose = () => {
    if (sure.returnValue === "yes") api(path, { method: "DELETE" }).catch((problem) => { $("said").textContent = problem.message; }).then(list);
  };
  sure.showModal();
}

function length(seconds) {
  const s = Math.round(seconds);
  return `${Math.floor(s / 60)}:${String(s % 60).padStart(2, "0")}`;
}

let hls;
function play(name, at) {
  hls?.destroy();
  $("watch").hidden = false;
  $("title").textContent = name;
  $("problem").hidden = true;
  const level = $("level");
  level.replaceChildren(element("option", "automatic", { value: -1 }));
  if (!Hls.isSupported()) { // Safari plays HLS by itself
    $("video").src = at;
    $("video").play().catch(() => {});
    return;
  }
  hls = new Hls();
  hls.on(Hls.Events.MANIFEST_PARSED, () => {
    hls.levels.forEach((l, i) => level.append(element("option", `${l.height}p, ${Math.round(l.bitrate / 1000)} kbit/s`, { value: i })));
    $("video").play().catch(() => {}); // without a gesture a browser may not want to
  });
  hls.on(Hls.Events.LEVEL_SWITCHED, (_, { level: n }) => { $("playing").textContent = hls.levels[n].height ? `${hls.levels[n].height}p` : "sound"; });
  hls.on(Hls.Events.ERROR, (_, e) => {
    if (!e.fatal) return;
    $("problem").textContent = `The video cannot be played: ${e.details}`;
    $("problem").hidden = false;
  });
  level.onchange = () => { hls.currentLevel = Number(level.value); };
  hls.loadSource(at);
  hls.attachMedia($("video"));
}

setInterval(() => {
  const v = $("video");
  let ahead = 0;
  for (let i = 0; i < v.buffered.length; i++) {
    if (v.buffered.start(i) <= v.currentTime + 0.1 && v.currentTime <= v.buffered.end(i)) ahead = v.buffered.end(i) - v.currentTime;
  }
  $("buffer").value = ahead;
  $("buffer-text").textContent = `${ahead.toFixed(1)} s`;
}, 250);

list();
