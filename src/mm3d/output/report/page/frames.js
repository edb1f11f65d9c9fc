// The frames of a view: decoded when they are wanted, the nearest slices first, a limited number kept.

const DECODED_BYTES = 72e6; // for each view: a tablet has room for eight such

class Frames {
  constructor(view, block, arrived) {
    this.view = view;
    this.block = block;
    this.arrived = arrived;
    this.kept = new Map(); // slice -> ImageBitmap
    this.room = Math.max(5, Math.floor(DECODED_BYTES / (4 * view.frameWidth * view.frameHeight)));
    this.wanted = 0;
    this.busy = false;
    this.lines = null;
  }

  get(z) {
    return this.kept.get(z);
  }

  want(z) {
    this.wanted = z;
    this.work();
  }

  // One frame at a time, so that a new wish waits for one decoding at most.
  async work() {
    if (this.busy) return;
    this.busy = true;
    for (let z = this.next(); z !== null; z = this.next()) {
      this.kept.set(z, await this.decode(z));
      this.forget();
      this.arrived(z);
    }
    this.busy = false;
  }

  // The missing slice that is nearest to the wanted one, of those there is room for.
  next() {
    const slices = this.view.slices;
    for (let away = 0; away <= Math.min(slices, (this.room - 1) >> 1); away++) {
      for (const z of [this.wanted + away, this.wanted - away]) {
        if (z >= 0 && z < slices && !this.kept.has(z)) return z;
      }
    }
    return null;
  }

  forget() {
    while (this.kept.size > this.room) {
      let far = this.wanted;
      for (const z of this.kept.keys()) {
        if (Math.abs(z - this.wanted) > Math.abs(far - this.wanted)) far = z;
      }
      this.kept.get(far).close();
      this.kept.delete(far);
    }
  }

  decode(z) {
    this.lines ??= this.block.textContent.split("\n");
    const letters = atob(this.lines[z]);
    const bytes = new Uint8Array(letters.length);
    for (let i = 0; i < letters.length; i++) bytes[i] = letters.charCodeAt(i);
    return createImageBitmap(new Blob([bytes], { type: "image/jpeg" }));
  }
}
