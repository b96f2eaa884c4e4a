// Attention and softmax composed from TensorFlow.js's public operations, as a program that uses it would write them.
// B batch, Hq and Hkv heads, Tq and Tk lengths, D and Dv head sizes.

import * as tf from "@tensorflow/tfjs-core";

/** Softmax over the last axis, and its log-sum-exp. */
export function softmax(_config, { x }) {
  return { output: tf.softmax(x, -1), lse: tf.logSumExp(x, -1) };
}

/** Scaled dot-product attention with everything that the protocol can ask of it, but sinks and dropout. */
export function sdpa(config, { q, k, v, mask, bias, kv_lengths: lengths, q_offset: offsets }) {
  const [B, Hq, Tq, D] = q.shape;
  const [, Hkv, Tk] = k.shape;
  const repeat = (x) => repeatHeads(x, Hq / Hkv);
  const scaled = tf.mul(q, config.scale ?? 1 / Math.sqrt(D));
  const scores = tf.matMul(scaled, repeat(k), false, true); // (B, Hq, Tq, Tk)
  const cap = config.softcap;
  const capped = cap == null ? scores : tf.mul(tf.tanh(tf.div(scores, cap)), cap);
  const biased = bias === undefined ? capped : tf.add(capped, bias);

  const shown = visible(config, offsets, lengths, mask, [B, Tq, Tk]);
  const masked = shown === null ? biased : tf.where(broadcast(shown, biased.shape), biased, -Infinity);
  const some = tf.notEqual(tf.max(masked, -1, true), -Infinity); // the softmax of a row without a key is NaN
  const weights = tf.where(broadcast(some, masked.shape), tf.softmax(masked, -1), 0);
  return {
    output: tf.matMul(weights, repeat(v)), // (B, Hq, Tq, Dv)
    weights,
    scores,
    capped,
    biased,
    lse: tf.where(tf.squeeze(some, [-1]), tf.logSumExp(masked, -1), -Infinity),
  };
}

/** (B, Hkv, T, n) as (B, Hq, T, n): query head h reads head h // G. */
function repeatHeads(x, group) {
  if (group === 1) return x;
  const [B, Hkv, T, n] = x.shape;
  return tf.reshape(tf.tile(tf.expandDims(x, 2), [1, 1, group, 1, 1]), [B, Hkv * group, T, n]);
}

/** What the conditions leave, of a shape that broadcasts to (B, Hq, Tq, Tk); null without any. */
function visible(config, offsets, lengths, mask, [B, Tq, Tk]) {
  const j = tf.range(0, Tk);
  const offset = offsets === undefined ? tf.fill([B], config.q_offset ?? 0) : offsets;
  const p = tf.add(tf.reshape(tf.range(0, Tq), [Tq, 1]), tf.reshape(offset, [B, 1, 1, 1])); // (B, 1, Tq, 1)
  const [left, right] = config.window ?? [null, null];
  const conditions = [];
  if (config.causal) conditions.push(tf.lessEqual(j, p));
  if (left != null) conditions.push(tf.greaterEqual(j, tf.sub(p, left)));
  if (right != null) conditions.push(tf.lessEqual(j, tf.add(p, right)));
  if (lengths !== undefined) conditions.push(tf.less(j, tf.reshape(lengths, [B, 1, 1, 1])));
  if (mask !== undefined) conditions.push(mask);
  return conditions.length === 0 ? null : conditions.reduce((a, b) => tf.logicalAnd(a, b));
}

/** A boolean tensor of the whole shape. */
function broadcast(x, shape) {
  return tf.logicalAnd(x, tf.ones(shape, "bool"));
}
