"use strict";
// Overlays images with maps of patches. Each view has frames (layers), and each frame has maps: the mean of the heads,
// then each head.
(() => {
  const data = JSON.parse(document.getElementById("viewer-data").textContent);
  if (!data || !data.images.length || !data.views.length) return;
  const $ = (id) => document.getElementById(id);
  const controls = { view: $("view"), layer: $("layer"), head: $("head"), opacity: $("opacity"), smooth: $("smooth") };

  const bytes = (base64) => Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
  const images = data.images.map((image, index) => ({
    ...image,
    pixels: $("image-" + index),
    canvas: $("overlay-" + index),
    maps: Object.fromEntries(Object.entries(image.maps).map(([key, map]) => [key, { ...map, values: bytes(map.values) }])),
  }));
  const view = () => data.views[Number(controls.view.value) || 0];

  function frameOf(image) {
    const map = image.maps[view().key];
    if (!map) return null;
    const [rows, columns] = map.grid;
    const head = Math.min(Number(controls.head.value), view().heads);
    const index = (Number(controls.layer.value) - 1) * (1 + view().heads) + head;
    return { rows, columns, values: map.values.subarray(index * rows * columns, (index + 1) * rows * columns) };
  }

  // Returns a canvas with the colored map, interpolated bilinearly between the centers of the patches.
  function heat({ rows, columns, values }, width, height) {
    const canvas = new OffscreenCanvas(width, height);
    const context = canvas.getContext("2d");
    const colored = context.createImageData(width, height);
    const smooth = controls.smooth.checked;
    const neighbors = (pixel, size, cells) => {
      const at = ((pixel + 0.5) / size) * cells - 0.5;
      if (!smooth) return [Math.round(at), Math.round(at), 0];
      const first = Math.min(Math.max(Math.floor(at), 0), cells - 1);
      return [first, Math.min(first + 1, cells - 1), Math.min(Math.max(at - first, 0), 1)];
    };
    const across = Array.from({ length: width }, (_, x) => neighbors(x, width, columns));
    for (let y = 0, at = 0; y < height; y++) {
      const [top, bottom, down] = neighbors(y, height, rows);
      for (let x = 0; x < width; x++, at += 4) {
        const [left, right, over] = across[x];
        const upper = values[top * columns + left] * (1 - over) + values[top * columns + right] * over;
        const lower = values[bottom * columns + left] * (1 - over) + values[bottom * columns + right] * over;
        const color = data.colors[Math.round(upper * (1 - down) + lower * down)];
        colored.data.set([color[0], color[1], color[2], 255], at);
      }
    }
    context.putImageData(colored, 0, 0);
    return canvas;
  }

  function draw(image) {
    const { canvas, pixels } = image;
    const [width, height] = [pixels.naturalWidth, pixels.naturalHeight];
    const scale = Math.max(1, Math.ceil(256 / Math.max(width, height)));
    canvas.width = width * scale;
    canvas.height = height * scale;
    const context = canvas.getContext("2d");
    context.imageSmoothingEnabled = Math.max(width, height) >= 64;
    context.drawImage(pixels, 0, 0, canvas.width, canvas.height);
    const frame = frameOf(image);
    if (!frame) return;
    context.globalAlpha = Number(controls.opacity.value) / 100;
    const size = [canvas.width, canvas.height].map((side) => Math.min(side, 240));
    context.imageSmoothingEnabled = controls.smooth.checked;
    context.drawImage(heat(frame, ...size), 0, 0, canvas.width, canvas.height);
  }

  function showControls() {
    const { frames, heads, title, help } = view();
    $("view-help").textContent = help;
    controls.layer.max = frames.length;
    controls.layer.disabled = frames.length < 2;
    const name = frames[Number(controls.layer.value) - 1];
    $("layer-name").textContent = name;
    controls.layer.setAttribute("aria-valuetext", name);
    if (controls.head.options.length !== heads + 1) {
      const names = ["mean of heads", ...Array.from({ length: heads }, (_, head) => "head " + (head + 1))];
      controls.head.replaceChildren(...names.map((text, head) => new Option(text, head)));
    }
    controls.head.disabled = heads === 0;
    for (const image of images) image.canvas.setAttribute("aria-label", `${image.name}: ${title}, ${name}`);
  }

  function update() {
    showControls();
    images.forEach(draw);
  }

  controls.view.replaceChildren(...data.views.map(({ title }, index) => new Option(title, index)));
  controls.view.addEventListener("change", () => {
    controls.layer.max = view().frames.length;
    controls.layer.value = view().frames.length;
    update();
  });
  for (const control of [controls.layer, controls.head, controls.opacity, controls.smooth]) control.addEventListener("input", update);

  const scale = $("scale").getContext("2d");
  data.colors.forEach(([red, green, blue], x) => {
    scale.fillStyle = `rgb(${red}, ${green}, ${blue})`;
    scale.fillRect(x, 0, 1, 1);
  });

  controls.layer.max = view().frames.length;
  controls.layer.value = view().frames.length;
  showControls();
  Promise.all(images.map(({ pixels }) => pixels.decode())).then(() => {
    update();
    document.documentElement.dataset.drawn = images.length;
  });
})();
