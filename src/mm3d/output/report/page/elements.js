"use strict";

// How parts of the page are made. Text is only ever text, whatever it holds.

function element(name, properties = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key in made) made[key] = value;
    else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

function drawn(name, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function clamp(value, low, high) {
  return Math.min(Math.max(value, low), high);
}

const twoDigits = (score) => score.toFixed(2);

// More pixels than this are work without anything to see.
const pixelRatio = () => Math.min(window.devicePixelRatio || 1, 2);
