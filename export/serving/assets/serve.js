"use strict";
// Sends an image to the server and shows the prediction. Names are shown as text, never as HTML.
(() => {
  const READABLE = /^image\/(jpeg|png|bmp|webp)$/; // types that the server reads
  const $ = (id) => document.getElementById(id);
  const visible = (ids, isVisible) => ids.forEach((id) => { $(id).hidden = !isVisible; });
  const say = (text, isError = false) => Object.assign($("status"), { textContent: text, className: isError ? "wrong" : "" });
  const safely = (task) => task().catch((error) => error.name === "AbortError" || say(error.message, true));
  const short = (number, isValue) => (isValue ? String(Number(number.toPrecision(5))) : `${(100 * number).toFixed(1)}%`);
  let image, maps, isValue, duration; // of the current image
  let running = new AbortController();

  async function ask(path, body, signal) {
    const response = await fetch(path, { method: "POST", body, signal });
    const found = await response.json();
    if (!response.ok) throw new Error(found.error);
    return found;
  }

  function asPng(source, width, height) {
    const canvas = new OffscreenCanvas(width, height);
    canvas.getContext("2d").drawImage(source, 0, 0);
    return canvas.convertToBlob();
  }

  async function readable(file) {
    if (READABLE.test(file.type)) return file;
    const bitmap = await createImageBitmap(file).catch(() => null);
    if (!bitmap) throw new Error("Expected an image that this browser can read.");
    return asPng(bitmap, bitmap.width, bitmap.height);
  }

  const show = (file) => file && safely(async () => {
    running.abort(); // the requests for the last image
    const { signal } = (running = new AbortController());
    visible(["result"], false);
    say("Predicting…");
    const body = await readable(file);
    const start = performance.now();
    const found = await ask("page/predict", body, signal);
    [image, duration] = [body, (performance.now() - start) / 1000];
    URL.revokeObjectURL($("image").src);
    $("image").src = URL.createObjectURL(image);
    showPrediction(found);
    say(`Predicted in ${duration.toFixed(2)} s.`);
  });

  function showPrediction({ kind, parts = [], mask, shape }) {
    isValue = kind === "values";
    $("parts").replaceChildren(...parts.map(row));
    $("summary").textContent = {
      probabilities: "The classes with the highest probabilities.",
      mask: "The share of the pixels of each class.",
      values: "",
      features: `An embedding of shape [${shape}], without classes or values. The REST API returns the numbers.`,
      scores: `Scores of shape [${shape}], without names. The REST API returns the numbers.`,
    }[kind];
    if (mask) $("mask").src = mask;
    visible(["mask", "fade"], mask);
    visible(["which", "map"], false);
    visible(["reasons"], isValue || kind === "probabilities");
    visible(["explain", "result"], true);
    $("finding").textContent = "";
  }

  function row({ name, number, color }) {
    const make = (tag, className = "", ...content) => {
      const element = Object.assign(document.createElement(tag), { className });
      element.append(...content);
      return element;
    };
    const [mark, fill] = [make("i"), make("span")];
    mark.hidden = !color;
    mark.style.background = fill.style.background = color ? `rgb(${color})` : "";
    fill.style.width = isValue ? 0 : `${100 * number}%`;
    const label = make("span", "label", mark, name);
    label.title = name;
    return make("li", "", label, make("span", isValue ? "" : "bar", fill), make("span", "value", short(number, isValue)), make("span"));
  }

  const explain = () => safely(async () => {
    const start = performance.now();
    visible(["explain"], false);
    const timer = setInterval(() => {
      const passed = ((performance.now() - start) / 1000).toFixed();
      $("finding").textContent = `Computing 65 predictions: ${passed} of about ${Math.ceil(65 * duration)} s at most`;
    }, 500);
    const found = await ask("page/explain", image, running.signal).finally(() => {
      clearInterval(timer);
      $("finding").textContent = "";
      visible(["explain"], true);
    });
    maps = found.maps;
    $("seen").src = found.image;
    $("which").replaceChildren(...maps.map(({ name }, index) => new Option(name, index)));
    visible(["which", "map"], true);
    visible(["explain"], false);
    shade();
  });

  // Darkens the parts of the image that change the probability or value little when they are covered.
  function shade() {
    const { name, falls } = maps[$("which").value];
    const effects = falls.map((line) => line.map((fall) => (isValue ? Math.abs(fall) : Math.max(fall, 0))));
    const largest = Math.max(...effects.flat());
    const canvas = Object.assign($("shade"), { height: falls.length, width: falls[0].length });
    const context = canvas.getContext("2d");
    effects.forEach((line, y) => line.forEach((effect, x) => {
      context.fillStyle = `rgb(0 0 0 / ${0.85 * (1 - effect / (largest || 1))})`;
      context.fillRect(x, y, 1, 1);
    }));
    const amount = isValue ? `changes by ${short(largest, true)}` : `falls by ${(100 * largest).toFixed(1)} percentage points`;
    $("finding").textContent = largest ? `Without the brightest part, “${name}” ${amount}.` : `“${name}” relies on none of the parts.`;
  }

  async function openCamera() {
    $("video").srcObject = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" } });
    visible(["finder"], true);
    visible(["camera"], false);
    await $("video").play();
  }

  function closeCamera() {
    $("video").srcObject?.getTracks().forEach((track) => track.stop());
    visible(["finder"], false);
    visible(["camera"], true);
  }

  async function shoot() {
    const frame = await asPng($("video"), $("video").videoWidth, $("video").videoHeight);
    closeCamera();
    await show(frame);
  }

  document.addEventListener("paste", (event) => show(event.clipboardData.files[0]));
  for (const type of ["dragover", "dragleave", "drop"]) {
    document.addEventListener(type, (event) => {
      event.preventDefault();
      $("drop").classList.toggle("over", type === "dragover");
      if (type === "drop") show(event.dataTransfer.files[0]);
    });
  }
  const fade = () => { $("mask").style.opacity = $("opacity").value / 100; };
  const listeners = { file: ["change", () => { show($("file").files[0]); $("file").value = ""; }], opacity: ["input", fade], which: ["change", shade],
    explain: ["click", explain], camera: ["click", () => safely(openCamera)], close: ["click", closeCamera], shoot: ["click", () => safely(shoot)] };
  for (const [id, [type, listener]] of Object.entries(listeners)) $(id).addEventListener(type, listener);
  for (const example of document.querySelectorAll("#examples button")) {
    example.addEventListener("click", () => safely(async () => show(await (await fetch(example.firstChild.src)).blob())));
  }
  for (const id of ["image", "seen"]) {
    $(id).addEventListener("load", ({ target }) => target.classList.toggle("small", target.naturalWidth < 64));
  }
  fade();
  $("camera").hidden = !navigator.mediaDevices; // only available over HTTPS and on localhost
})();
