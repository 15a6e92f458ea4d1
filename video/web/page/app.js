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
  let assets;
  try {
    ({ assets } = await (await api("v1/assets")).json());
  } catch {
    timer = setTimeout(list, 2000);
    return;
  }
  $("none").hidden = assets.length > 0;
  $("assets").replaceChildren(...assets.map(row));
  if (assets.some((a) => a.state === "uploading" || a.state === "working")) timer = setTimeout(list, 500);
}

function row(a) {
  const tr = document.createElement("tr");
  tr.dataset.id = a.id;
  const state = element("td", a.state, { className: a.state });
  if (a.jobs?.all) state.append(" ", element("progress", "", { max: a.jobs.all, value: a.jobs.done }));
  if (a.error) state.append(": " + a.error);
  if (a.warnings) state.title = a.warnings.join("\n");
  const tools = document.createElement("td");
  if (a.state === "ready") tools.append(element("button", "Play", { onclick: () => play(a) }), " ");
  if (a.state === "failed") tools.append(element("button", "Retry", { onclick: () => api(`v1/assets/${a.id}/retry`, { method: "POST" }).then(list) }), " ");
  tools.append(element("button", "Delete", { onclick: () => api(`v1/assets/${a.id}`, { method: "DELETE" }).then(list) }));
  tr.append(element("td", a.name), state, element("td", a.duration ? length(a.duration) : ""), tools);
  return tr;
}

function length(seconds) {
  const s = Math.round(seconds);
  return `${Math.floor(s / 60)}:${String(s % 60).padStart(2, "0")}`;
}

let hls;
function play(a) {
  hls?.destroy();
  $("watch").hidden = false;
  $("title").textContent = a.name;
  $("problem").hidden = true;
  const level = $("level");
  level.replaceChildren(element("option", "automatic", { value: -1 }));
  if (!Hls.isSupported()) { // Safari plays HLS by itself
    $("video").src = a.hls;
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
  hls.loadSource(a.hls);
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
