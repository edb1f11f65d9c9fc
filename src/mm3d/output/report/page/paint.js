// An image on a canvas: one slice, or the mean or maximum of several, through the window.

// The slices that are shown together around one, as far as they are decoded.
function slabSlices(view, z) {
  if (state.slab === "slice") return [z];
  const count = Math.min(state.thickness, view.frames.room);
  const first = Math.max(0, z - ((count - 1) >> 1));
  const last = Math.min(view.slices - 1, z + (count >> 1));
  const slices = [];
  for (let slice = first; slice <= last; slice++) if (view.frames.get(slice)) slices.push(slice);
  return slices;
}

// Grey values as they are to be shown, as pixels of a canvas; null if they stay as they are.
function greyTable() {
  const { centre, width } = state.window;
  if (centre === 0.5 && width === 1 && !state.invert) return null;
  const table = new Uint32Array(256);
  for (let value = 0; value < 256; value++) {
    let grey = Math.round(255 * clamp((value / 255 - centre) / width + 0.5, 0, 1));
    if (state.invert) grey = 255 - grey;
    table[value] = 0xff000000 | (grey << 16) | (grey << 8) | grey;
  }
  return table;
}

// Paint a view on all of a canvas: stored pixels times `scale`, from `origin` on. What is outside the image has the grey
// of the air in it, and passes the same window, so that there is one background.
function paint(context, view, scale, origin) {
  const { width, height } = context.canvas;
  const bitmaps = slabSlices(view, view.shown).map((z) => view.frames.get(z));
  context.imageSmoothingQuality = "medium";
  context.fillStyle = `rgb(${view.background} ${view.background} ${view.background})`;
  context.fillRect(0, 0, width, height);
  const draw = (bitmap) => context.drawImage(bitmap, ...origin, view.width * scale, view.height * scale);
  const grey = greyTable();
  if (bitmaps.length === 1) draw(bitmaps[0]);
  if (bitmaps.length === 1 && !grey) return;
  const image = bitmaps.length === 1 ? context.getImageData(0, 0, width, height) : combine(context, bitmaps, draw);
  if (grey) {
    const pixels = new Uint32Array(image.data.buffer);
    for (let i = 0; i < pixels.length; i++) pixels[i] = grey[pixels[i] & 255];
  }
  context.putImageData(image, 0, 0);
}

// The mean or the maximum of several slices, pixel by pixel.
function combine(context, bitmaps, draw) {
  const { width, height } = context.canvas;
  const sums = new Uint16Array(width * height);
  let image = null;
  for (const bitmap of bitmaps) {
    draw(bitmap);
    image = context.getImageData(0, 0, width, height);
    const pixels = new Uint32Array(image.data.buffer);
    if (state.slab === "mean") for (let i = 0; i < sums.length; i++) sums[i] += pixels[i] & 255;
    else for (let i = 0; i < sums.length; i++) sums[i] = Math.max(sums[i], pixels[i] & 255);
  }
  const count = state.slab === "mean" ? bitmaps.length : 1;
  const pixels = new Uint32Array(image.data.buffer);
  for (let i = 0; i < sums.length; i++) pixels[i] = 0xff000000 | (Math.round(sums[i] / count) * 0x010101);
  return image;
}
