/** Small tensors as they stand in files. */

import { type Stored, store } from "../src/safetensors.ts";
import * as plain from "./helpers.ts";

export const f32 = (shape: number[], values: number[]): Stored => store(plain.f32(shape, values));
export const f64 = (shape: number[], values: number[]): Stored => store(plain.f64(shape, values));
export const int64 = (shape: number[], values: number[]): Stored => store(plain.int64(shape, values));
